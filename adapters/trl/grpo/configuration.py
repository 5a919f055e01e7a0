"""A job as the configuration of `GRPOTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Unsupported
from adapters.contract.objective import CONSTANTS
from adapters.trl.configuration import settings_of_generations
from adapters.trl.grpo.objectives import (
    BONUS,
    LOSS_TYPES,
    OF_OBJECTIVES,
    OWN_LOSS_TYPES,
    PENALTY,
)
from adapters.trl.grpo.versions import has_loss_type

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.configuration import Settings
    from adapters.trl.schedule import Schedule


ONE = 1.0
"""The divisor of luspo, which sums the tokens of a sample."""


def settings(job: Job, schedule: Schedule) -> Settings:
    """The settings for a job; raises `Unsupported`."""
    return {
        **settings_of_generations(job, schedule),
        **_loss(job),
        **_terms(job),
        **OF_OBJECTIVES.get(job.objective, {}),
    }


def _loss(job: Job) -> Settings:
    """The settings of the loss."""
    chosen: Settings = {"epsilon": CONSTANTS.clip_low, "epsilon_high": CONSTANTS.clip_high}
    if job.configuration.says_mode:
        chosen["loss_type"] = _loss_type(job)
    divisor = _divisor(job)
    return chosen if divisor in (None, "") else chosen | {"max_completion_length": divisor}


def _terms(job: Job) -> Settings:
    """The settings of terms that a configuration adds to the loss."""
    return {
        **(BONUS if job.configuration.entropy else {}),
        **(PENALTY if job.configuration.kl else {}),
    }


def _loss_type(job: Job) -> str:
    mode = job.aggregation.mode
    if job.objective in OWN_LOSS_TYPES:
        own_mode, name = OWN_LOSS_TYPES[job.objective]
        if mode is not own_mode:
            raise Unsupported(f"loss_type={name} is only {own_mode}")
        return name
    name = "luspo" if job.aggregation.divisor == ONE else LOSS_TYPES[mode]
    if not has_loss_type(name):
        raise Unsupported(f"no loss_type={name}")
    return name


def _divisor(job: Job) -> int | str | None:
    """The divisor as typed, else that of the mode; None if the mode needs none."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    divisor = job.aggregation.divisor
    if divisor is None or divisor == ONE:
        return None
    if not divisor.is_integer():
        raise Unsupported(f"max_completion_length is a number of tokens, but L is {divisor:g}")
    return int(divisor)
