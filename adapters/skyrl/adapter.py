"""What SkyRL's engines share: everything from rollouts to the chunk that a worker trains on.

Every rank plays the trainer of its own: it converts the same rollouts, normalises advantages, cuts
them into mini-batches and data-parallel chunks with SkyRL's code, and hands its chunk to SkyRL's
worker of the engine. Ours are four things only: a model that carries the probe, a seam where SkyRL
computes log-probabilities, a dispatch that calls the worker where SkyRL would send to a Ray actor,
and an optimizer that lets the gradient be read.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from adapters.contract import Adapter, Combine, Depth, Description, Job, Observation, Rank
from adapters.probe import FORWARD_PASSES, ProbedBatch
from adapters.skyrl import trainer
from adapters.skyrl.configuration import configure, modes, scales_advantages
from adapters.skyrl.importing import STOOD_IN, import_skyrl

if TYPE_CHECKING:
    from pathlib import Path


class SkyRLAdapter(Adapter):
    """Drives NovaSky-AI/SkyRL, the `skyrl` package, from 0.2.0 on."""

    name = "skyrl"
    package = "skyrl"
    distribution = "skyrl"
    tree = ("skyrl", "skyrl-gym")

    @abstractmethod
    def load_engine(self) -> None:
        """Import the engine's worker and put the seam where it computes log-probabilities."""

    @abstractmethod
    def configure_engine(self, trainer_config: Any, job: Job) -> None:
        """Set what the engine has in the trainer's section of the configuration."""

    @abstractmethod
    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, with the gradients it will read in ``gradients``."""

    def load(self, source: Path | None) -> None:
        """Import SkyRL and its engine."""
        import_skyrl(source)
        self.load_engine()

    def describe(self) -> Description:
        """Modes are what the reduction function accepts."""
        alone = {Depth.REDUCER} if scales_advantages() else set()
        return Description(
            modes=modes(),
            depths=frozenset({Depth.LOSS, Depth.STEP} | alone),
            stand_ins=tuple(STOOD_IN),
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one rollout."""
        batch, dp_size = ProbedBatch(job.steps), job.layout.dp
        with rank.framework():
            config = configure(job, self.configure_engine)
        if job.depth is Depth.REDUCER:
            with rank.framework():
                gradient = trainer.reduce(config, batch, dp_size)
            return Observation(weights=batch.split(batch.weights(gradient)))
        worker = self.worker(config, job, batch.probe_size, rank)
        worker._micro_batches_accumulated = 0  # of which older versions make a mean
        FORWARD_PASSES.take()
        with rank.framework():
            reported = trainer.train(config, worker, batch, dp_size)
        return Observation(
            weights=batch.weights_of_steps(worker.gradients),
            combine=Combine.REPLICATED if job.depth is Depth.STEP else Combine.MEAN,
            reported=reported if job.depth is Depth.STEP else (),
            forward_passes=batch.forward_passes(FORWARD_PASSES.take()),
        )
