"""The adapters of RLinf, from results of rollouts to the gradient of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Description, Framework, Job, Metric, Objective, Rank, Settings
from adapters.engines.shells import InOneRun, OnFsdp
from adapters.rlinf import importing
from adapters.rlinf.framework import FSDP2, RLINF

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract.batch.probed_batch import ProbedBatch


class RlinfFsdpAdapter(OnFsdp, InOneRun):
    """RLinf with FSDP1, the strategy of its example configurations."""

    name = "rlinf"
    engine = "fsdp"
    package = "rlinf"
    distribution = "rlinf"
    versions = "RLinf 0.3.0, main, and commits since November 2025"
    tree = ("rlinf",)
    dependencies = ("ray", "transformers")
    recipes = "adapters.rlinf.recipe:read"
    framework: ClassVar[Framework] = RLINF

    def load(self, source: Path | None) -> None:
        """Import RLinf's actor."""
        from adapters.engines import fsdp1

        importing.import_rlinf(source)
        fsdp1.initialise_on_cpu()

    def describe(self) -> Description:
        """Describe RLinf."""
        return self.framework.description(
            importing.options().offers, importing.option_names(), importing.default
        )

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One training call of the actor, whose mini-batches are the steps."""
        from adapters.rlinf.driving import RlinfActor, train
        from adapters.rlinf.embodied import EmbodiedActor

        kind = EmbodiedActor if job.objective is Objective.WITH_VALUE else RlinfActor
        return train(kind, self.engine, job, batch, settings, rank)

    def reported(self, job: Job, done: Any) -> dict[Metric, tuple[float | None, ...]]:
        """The metrics of rollouts and of each step."""
        return self.framework.reported([done.of_rollouts]) | super().reported(job, done)


class RlinfFsdp2Adapter(RlinfFsdpAdapter):
    """RLinf with FSDP2."""

    engine: ClassVar[str] = "fsdp2"
    framework = FSDP2
