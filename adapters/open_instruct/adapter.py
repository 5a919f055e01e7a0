"""The adapter of open-instruct, from rollouts to the gradient of DeepSpeed's optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.engines.shells import InOneRun, OnRayAndDeepSpeed
from adapters.open_instruct import importing
from adapters.open_instruct.framework import OPEN_INSTRUCT

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch


class OpenInstructAdapter(OnRayAndDeepSpeed, InOneRun):
    """Drives allenai/open-instruct: `grpo_fast`."""

    name = "open_instruct"
    package = "open_instruct"
    versions = "open-instruct of August 2026"
    tree = ("open_instruct",)
    recipes = "adapters.open_instruct.recipe:read"
    framework = OPEN_INSTRUCT

    def load(self, source: Path | None) -> None:
        """Import open-instruct, DeepSpeed and the trainer."""
        importing.import_open_instruct(source)

    def describe(self) -> Description:
        """Describe the trainer by the fields of its configurations."""
        options = importing.options()
        return OPEN_INSTRUCT.description(
            options.offers,
            options.options_and_choices(importing.read_by_the_step()),
            options.defaults.get,
        )

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.open_instruct.driving import OpenInstructTraining

        return OpenInstructTraining(job, batch, settings, rank)
