"""A job as the configuration of `RLOOTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Option, Unsupported
from adapters.contract.objective import CONSTANTS
from adapters.trl.configuration import settings_of_generations

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule

ONE = 1.0
"""The divisor of a sample's token losses, which are summed."""


def settings(job: Job, schedule: Schedule) -> Settings:
    """The settings for a job; raises `Unsupported`."""
    if job.aggregation.divisor != ONE:
        raise Unsupported("RLOOTrainer sums the tokens of a sample, which is only constant:1")
    _require_whole_samples(job)
    return {
        **settings_of_generations(job, schedule),
        "epsilon": CONSTANTS.clip_low,
        "epsilon_high": CONSTANTS.clip_high,
        "beta": 0.0,
    }


def _require_whole_samples(job: Job) -> None:
    """Raise `Unsupported` if a sample is partly masked, or masked without being truncated."""
    masks = [step.mask[response] for step in job.steps for response in step.responses]
    if any(mask.any() and not mask.all() for mask in masks):
        raise Unsupported("RLOOTrainer has no token mask: it trains on whole completions")
    truncates = Option.MASKED_TRUNCATION in job.layout.options
    if not truncates and not all(mask.all() for mask in masks):
        raise Unsupported("RLOOTrainer masks only truncated samples")
