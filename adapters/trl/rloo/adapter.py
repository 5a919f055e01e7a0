"""The adapter of `RLOOTrainer`, for every engine.

Its loss belongs to a whole sequence and is averaged over samples. With a ratio of 1, each token
weighs 1/N times the advantage of its sample, which is `constant` with L = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Assumed, CodeLocation, Documented, Job, Option, Unsupported
from adapters.contract.objective import CONSTANTS, Objective
from adapters.trl import departures, importing
from adapters.trl.adapter import TrlAdapter
from adapters.trl.configuration import ONE, settings_of_generations
from reference.aggregation import AdvantageUnit, AuxiliaryAggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.description import Convention
    from adapters.toolkit.calls import Candidates
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

    departures = (*departures.GENERATING, *departures.RLOO)

    def found(self) -> dict[str, Any]:
        """The trainer's only mode, and its objectives."""
        return {
            "modes": frozenset({Mode.CONSTANT}),
            "default_mode": Mode.CONSTANT,
            "objectives": frozenset({Objective.POLICY, Objective.LEAVE_ONE_OUT}),
        }

    def declared(self) -> Mapping[str, Convention]:
        """The trainer's."""
        return CONVENTIONS

    def settings(self, job: Job, schedule: Schedule) -> Settings:
        """The settings for a job; raises `Unsupported`."""
        if job.aggregation.divisor != ONE:
            raise Unsupported(
                "RLOOTrainer adds the tokens of a sample up, which is constant:1 alone"
            )
        _require_whole_samples(job)
        return {
            **settings_of_generations(job, schedule),
            "epsilon": CONSTANTS.clip_low,
            "epsilon_high": CONSTANTS.clip_high,
            "beta": 0.0,
        }

    def trainings(self) -> type[Training]:
        """Runs of `RLOOTrainer`."""
        from adapters.trl.rloo.trainer import RlooTraining

        return RlooTraining

    def candidates(self) -> Candidates:
        """The functions in which the trainer logs and validates; it counts no tokens."""
        trainer = importing.module("trainer.rloo_trainer").RLOOTrainer
        config = importing.module("trainer.rloo_config").RLOOConfig
        return {
            CodeLocation.LOG: ((trainer, "log"),),
            CodeLocation.ARGUMENTS: ((config, "__post_init__"),),
        }


def _require_whole_samples(job: Job) -> None:
    """Raise `Unsupported` if a sample is partly masked, or masked without being truncated."""
    masks = [step.mask[response] for step in job.steps for response in step.responses]
    if any(mask.any() and not mask.all() for mask in masks):
        raise Unsupported("RLOOTrainer has no token mask: it trains on whole completions")
    truncates = Option.MASKED_TRUNCATION in job.layout.options
    if not truncates and not all(mask.all() for mask in masks):
        raise Unsupported("RLOOTrainer masks only truncated samples")
