"""The adapter of `AsyncGRPOTrainer`, for every engine.

Its loss is a mean over the tokens of a step, and its samples come from a queue. Each has one
advantage, and log-probabilities of the policy that generated it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.description import Assumed, BatchProperty, CodeLocation, Documented
from adapters.contract.layout import Layout
from adapters.contract.objective import CONSTANTS, Objective
from adapters.engines.shells import cuts
from adapters.trl import departures, importing
from adapters.trl.adapter import TrlAdapter
from adapters.trl.configuration import settings_of_run
from reference.aggregation import AdvantageUnit, AuxiliaryAggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract import Rank
    from adapters.contract.description import Convention
    from adapters.contract.job import Job, Observation
    from adapters.toolkit.calls import Candidates
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule
    from adapters.trl.training import Training

CONVENTIONS: Mapping[str, Convention] = {
    "advantage_unit": Documented(
        AdvantageUnit.SAMPLE, "docs/source/grpo_trainer.md, Computing the advantage"
    ),
    "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
}
"""What the mode leaves open. Where docs/source/async_grpo_trainer.md says nothing, it refers to the
page of GRPO."""

NEVER_MADE = {
    BatchProperty.EMPTY_SAMPLE: "trl/experimental/async_grpo/async_rollout_worker.py"
    " (_chain_to_sequences)"
}
"""What TRL's own worker prevents; users may replace it (``rollout_worker``)."""


class AsyncAdapter(TrlAdapter):
    """Drives `AsyncGRPOTrainer`."""

    mode_names: ClassVar[Mapping[str, str]] = {"AsyncGRPOTrainer": Mode.TOKEN_MEAN.value}
    options = ()
    departures = departures.ASYNC

    def load(self, source: Path | None) -> None:
        """Import the trainer, too; fails in versions that do not pack rows by shared prefixes."""
        super().load(source)
        importing.module("experimental.async_grpo.packing")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, with packed rows."""
        plain = cuts(((1, 1), (2, 1), (4, 1)), "thd", micro_batches=(1, 2))
        return [*plain, Layout(dp=2, micro_batches=4, format="thd")]

    def found(self) -> dict[str, Any]:
        """The trainer's only mode, and its objectives."""
        return {
            "modes": frozenset({Mode.TOKEN_MEAN}),
            "default_mode": Mode.TOKEN_MEAN,
            "objectives": frozenset({Objective.POLICY, Objective.OFF_POLICY}),
            "never_made": NEVER_MADE,
        }

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps; rows are not counted by their first token, which samples share."""
        return replace(super().observe(job, rank), rows=())

    def declared(self) -> Mapping[str, Convention]:
        """The trainer's."""
        return CONVENTIONS

    def settings(self, job: Job, schedule: Schedule) -> Settings:
        """The settings for a job."""
        return {
            **settings_of_run(schedule),
            "epsilon": CONSTANTS.clip_low,
            "epsilon_high": CONSTANTS.clip_high,
            "token_budget": 0,
            "max_staleness": schedule.optimizer_steps + 1,
        }

    def trainings(self) -> type[Training]:
        """Runs of `AsyncGRPOTrainer`."""
        from adapters.trl.asynchronous.trainer import AsyncTraining

        return AsyncTraining

    def candidates(self) -> Candidates:
        """The functions in which the trainer counts, divides, logs and validates."""
        trainer = importing.module("experimental.async_grpo.async_grpo_trainer")
        config = importing.module("experimental.async_grpo.async_grpo_config").AsyncGRPOConfig
        return {
            CodeLocation.TOKEN_COUNT: ((trainer.DataCollatorForRollout, "torch_call"),),
            CodeLocation.TOKEN_DIVISION: ((trainer.AsyncGRPOTrainer, "compute_loss"),),
            CodeLocation.LOG: ((trainer.AsyncGRPOTrainer, "log"),),
            CodeLocation.ARGUMENTS: ((config, "__post_init__"),),
        }
