"""The adapter of `RLOOTrainer`, for every engine.

Its loss belongs to a whole sequence and is averaged over samples. With a ratio of 1, each token
weighs 1/N times the advantage of its sample, which is `constant` with L = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from adapters.contract.conventions import Assumed, Documented
from adapters.contract.description import CodeLocation, Description
from adapters.contract.job import Depth, Job
from adapters.contract.objective import Objective
from adapters.toolkit.calls import Candidates, places
from adapters.trl import departures, importing
from adapters.trl.adapter import OPTIONS, TrlAdapter
from reference.aggregation import AdvantageUnit, AuxiliaryAggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.conventions import Convention
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule
    from adapters.trl.training import Training

PAGE = "docs/source/rloo_trainer.md"

CONVENTIONS: Mapping[str, Convention] = {
    "advantage_unit": Documented(AdvantageUnit.SAMPLE, f"{PAGE}, Computing the advantage"),
    "logged_policy_loss": Documented(
        AuxiliaryAggregation.SAMPLE_MEAN, f"{PAGE}, Computing the loss"
    ),
    "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
}
"""What the mode leaves open. The loss is a mean over completions, whatever their lengths. Logged
entropies are averages over completions; the page does not say whether they are pooled."""


class RlooAdapter(TrlAdapter):
    """Drives `RLOOTrainer`."""

    mode_names: ClassVar[Mapping[str, str]] = {"RLOOTrainer": "constant:1"}

    def describe(self) -> Description:
        """Describe the trainer."""
        from adapters.trl.rloo.trainer import RlooTraining

        return Description(
            modes=frozenset({Mode.CONSTANT}),
            default_mode=Mode.CONSTANT,
            depths=frozenset({Depth.STEP}),
            objectives=frozenset({Objective.POLICY, Objective.LEAVE_ONE_OUT}),
            metrics=frozenset(RlooTraining.names),
            options=frozenset({*OPTIONS, *self.options_of_engine()}),
            records_forward_passes=True,
            declared=CONVENTIONS,
            places=places(_candidates()),
            departures=(
                *departures.ALL,
                *departures.GENERATING,
                *departures.RLOO,
                *self.departures_of_engine(),
            ),
        )

    def declared(self) -> Mapping[str, Convention]:
        """The trainer's conventions."""
        return CONVENTIONS

    def settings(self, job: Job, schedule: Schedule) -> Settings:
        """The settings for a job; raises `Unsupported`."""
        from adapters.trl.rloo.configuration import settings

        return settings(job, schedule)

    def trainings(self) -> type[Training]:
        """Runs of `RLOOTrainer`."""
        from adapters.trl.rloo.trainer import RlooTraining

        return RlooTraining


def _candidates() -> Candidates:
    """The functions in which the trainer logs and validates; it counts no tokens."""
    trainer = importing.module("trainer.rloo_trainer").RLOOTrainer
    config = importing.module("trainer.rloo_config").RLOOConfig
    return {
        CodeLocation.LOG: ((trainer, "log"),),
        CodeLocation.ARGUMENTS: ((config, "__post_init__"),),
    }
