"""The adapter that ROLL's engines share, from rollouts to the gradient of the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract.framework import nested
from adapters.contract.objective import OF_ROLLOUTS, Objective
from adapters.engines.shells import InOneRun
from adapters.roll import importing
from adapters.roll.framework import ROLL
from adapters.toolkit.settings import trained_model
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Framework, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.engines.shells import Reported
    from adapters.roll.driving import RollRollouts, TrainedWorker
    from reference.arrays import Mask


class RollAdapter(InOneRun):
    """Drives alibaba/ROLL."""

    name = "roll"
    package = "roll"
    versions = "commits since March 2026"
    tree = ("roll", "mcore_adapter")
    recipes = "adapters.roll.recipe:read"
    framework: ClassVar[Framework] = ROLL
    loaded: ClassVar[Any] = importing

    engine_module: ClassVar[str]
    """ROLL's module of the engine's strategy."""
    log_probs: ClassVar[importing.Function]
    """The function by which the engine computes log-probabilities from logits."""
    entropies: ClassVar[importing.Function]
    """The function by which the engine computes entropies from logits."""

    @abstractmethod
    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> TrainedWorker:
        """A role's worker, whose engine is built around our model."""

    def attended(self, job: Job, mask: Mask) -> Mask:
        """A response's attention mask: tokens up to the last active one of its loss mask."""
        attended: Mask = np.flip(np.maximum.accumulate(np.flip(mask)))
        return attended

    def window_settings(self, job: Job, settings: Settings, rollouts: RollRollouts) -> Settings:
        """Further settings, which make every step one accumulation window of micro-batches."""
        return {}

    def load(self, source: Path | None) -> None:
        """Import ROLL's RLVR pipeline and its engine."""
        importing.import_roll(source, self.log_probs, self.entropies)

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the pipeline."""
        from adapters.engines.numbered import SEAM
        from adapters.roll.driving import RollRollouts, RollTraining

        SEAM.start(batch)
        config = importing.configured(settings)
        rollouts = RollRollouts(batch, job, settings, partial(self.attended, job))
        if windows := self.window_settings(job, settings, rollouts):
            settings = {**settings, **windows}
            config = importing.configured(settings)
        trained = self._trained(settings, config, job, batch.probe_size, rank)
        return RollTraining(rollouts, rank, config, trained)

    def reported(self, job: Job, done: Any) -> Reported:
        """The metrics of steps, and of rollouts if the batch has only one step."""
        of_batch = OF_ROLLOUTS if len(job.steps) > 1 else ()
        found = super().reported(job, done).items()
        return {metric: numbers for metric, numbers in found if metric not in of_batch}

    def configure(self, worker: Any, config: Any, own: Any) -> None:
        """Give a worker the configurations of the pipeline and of the worker's role."""
        worker.pipeline_config = config
        worker.worker_config = worker.strategy.worker_config = own

    def _trained(
        self, settings: Settings, config: Any, job: Job, probe_size: int, rank: Rank
    ) -> TrainedWorker:
        """A role's worker, configured for the job; the jobs of a world share matching workers."""
        from adapters.toolkit.probe import probe_capacity

        role, capacity = trained_model(job, "actor_train"), probe_capacity(probe_size)
        own: Any = getattr(config, role)
        actor = nested(settings)["actor_train"]
        # The key has the variant, because a policy-gradient worker keeps its variant's settings.
        of_engine = str([actor["model_args"], actor["strategy_args"]])
        has_router = job.objective is Objective.ROUTER
        key = "roll", own.worker_cls, own.pg_variant, capacity, of_engine, has_router
        trained = cached(rank, key, lambda: self.make(role, config, job, capacity, rank))
        self.configure(trained.worker, config, own)
        return trained
