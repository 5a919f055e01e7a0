"""The adapter of OpenRLHF, from a batch of rollouts to the gradient of DeepSpeed's optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Description, Framework, Job, Metric, Rank, Settings
from adapters.engines.shells import InOneRun, OnRayAndDeepSpeed
from adapters.openrlhf import importing
from adapters.openrlhf.framework import LEVEL, OPENRLHF

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.engines.shells import Reported


class OpenRLHFAdapter(OnRayAndDeepSpeed, InOneRun):
    """Drives OpenRLHF/OpenRLHF from 0.10.4 on."""

    name = "openrlhf"
    package = "openrlhf"
    versions = "OpenRLHF since 0.10.4"
    distribution = "openrlhf"
    tree = ("openrlhf",)
    recipes = "adapters.openrlhf.recipe:read"
    framework: ClassVar[Framework] = OPENRLHF

    def load(self, source: Path | None) -> None:
        """Import OpenRLHF, DeepSpeed and the trainer."""
        importing.import_openrlhf(source)
        from adapters.openrlhf import model

        model.put_the_seams_in()

    def describe(self) -> Description:
        """Describe OpenRLHF; before 0.11.2 it did not log the tokens dropped by corrections."""
        logged = {*OPENRLHF.metrics} - (set() if importing.knows(LEVEL) else {Metric.REJECTED})
        return OPENRLHF.description(
            importing.offers, importing.option_names(), importing.default, metrics=frozenset(logged)
        )

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One step of the trainer, whose train batches are the steps."""
        from adapters.openrlhf.driving import Session

        return Session(batch, job, rank, settings)

    def reported(self, job: Job, done: Any) -> Reported:
        """The metrics of rollouts and of each step."""
        return done.reported
