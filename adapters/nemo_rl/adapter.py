"""The adapter of NeMo-RL, from a batch of rollouts to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.objective import FROM_REWARDS, OF_ROLLOUTS
from adapters.engines.shells import OnFsdp
from adapters.nemo_rl import importing
from adapters.nemo_rl.framework import DTENSOR_V1, DTENSOR_V2, NEMO_RL
from adapters.toolkit.worlds import observation, set_what_ray_sets

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Framework, Job, Observation, Rank


class NemoRLAdapter(OnFsdp):
    """Drives NVIDIA-NeMo/RL."""

    name = "nemo_rl"
    package = "nemo_rl"
    versions = "commits since 14 May 2026"
    tree = ("nemo_rl", "examples/configs")
    devices = ("cpu",)
    dtypes = ("float32",)
    dependencies: ClassVar[tuple[str, ...]] = ("transformers",)
    recipes = "adapters.nemo_rl.recipe:read"
    framework: ClassVar[Framework] = NEMO_RL

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and its worker."""
        importing.import_nemo_rl(source)

    def describe(self) -> Description:
        """Describe NeMo-RL."""
        return self.framework.description(
            importing.offers, importing.option_names(), importing.default
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of the batch by NeMo-RL's trainer."""
        from adapters.nemo_rl.driving import NemoRLTraining

        set_what_ray_sets(rank)
        batch = ProbedBatch.of(job, conventions_of(NEMO_RL.conventions))
        with rank.framework():
            training = NemoRLTraining(batch, job, self.framework, rank)
        reported = {
            metric: values
            for metric, values in self.framework.reported(training.logs).items()
            if (metric in OF_ROLLOUTS) is (job.objective in FROM_REWARDS)
        }
        return observation(batch, training.gradients, training.passes, reported)


class DTensorV1Adapter(NemoRLAdapter):
    """The first version of the worker, which shards models itself."""

    engine = "dtensor_v1"
    framework = DTENSOR_V1


class DTensorV2Adapter(NemoRLAdapter):
    """The second version of the worker, which builds on Automodel."""

    engine = "dtensor_v2"
    dependencies = ("nemo_automodel", "transformers")
    framework = DTENSOR_V2

    def load(self, source: Path | None) -> None:
        """Import NeMo-RL's trainers and both workers; raises `ImportError` without Automodel."""
        super().load(source)
        importing.module("models.policy.workers.dtensor_policy_worker_v2")
