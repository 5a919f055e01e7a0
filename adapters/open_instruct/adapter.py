"""The adapter of open-instruct, from rollouts to the gradient of DeepSpeed's optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.layout import Layout, Option
from adapters.engines.shells import (
    RANKS,
    SHARED,
    InOneRun,
    OnRayAndDeepSpeed,
    cuts,
    ordered,
    variants,
)
from adapters.open_instruct import importing
from adapters.open_instruct.framework import OPEN_INSTRUCT, STAGES

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Job, Rank
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.framework import Settings

OF_STAGES = ("dp1-cp1-mb2-thd", "dp2-cp1-mb2-thd", "dp2-cp1-mb2-bshd", "dp4-cp1-mb1-bshd")
"""The layouts of stages of ZeRO other than the default."""

OF_BATCHES = (Option.SHARED_GENERATION, Option.TWO_EPOCHS)


class OpenInstructAdapter(OnRayAndDeepSpeed, InOneRun):
    """Drives allenai/open-instruct: `grpo_fast`."""

    name = "open_instruct"
    package = "open_instruct"
    versions = "open-instruct of August 2026"
    tree = ("open_instruct",)
    recipes = "adapters.open_instruct.recipe:read"
    framework = OPEN_INSTRUCT

    def layouts(self) -> list[Layout]:
        """Packed rows one by one (thd) or several in a micro-batch (bshd), on up to 4 ranks."""
        plain = cuts(RANKS, "thd", micro_batches=(2, "tokens"))
        rows = cuts(RANKS, "bshd", micro_batches=(1, 2))
        shared = cuts(SHARED, "thd", micro_batches=(2,))
        options = [*variants(OF_STAGES, STAGES), *variants(OF_STAGES[:2], OF_BATCHES)]
        return ordered([*plain, *rows, *shared, *options])

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
            stubs=tuple(importing.STUBBED),
        )

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the trainer."""
        from adapters.open_instruct.driving import OpenInstructTraining

        return OpenInstructTraining(job, batch, settings, rank)
