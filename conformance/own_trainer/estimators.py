"""The advantages that a trainer may compute from rewards itself, by the reference's estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.errors import WrongUseError
from reference import advantages
from reference.aggregation import Deviation, EstimatorConventions
from reference.losses.constants import AdvantageConstants

if TYPE_CHECKING:
    from reference.arrays import Integers, Values


_UNBIASED = EstimatorConventions()
_BIASED = replace(_UNBIASED, deviation=Deviation.BIASED)

ESTIMATORS = {
    "group_normalised": (advantages.group_normalised, _UNBIASED),
    "group_normalised_biased": (advantages.group_normalised, _BIASED),
    "group_centred": (advantages.group_centred, _UNBIASED),
    "leave_one_out": (advantages.leave_one_out, _UNBIASED),
}
"""The estimators that `loss_conformance(advantages=…)` takes, by name."""

_NONE = AdvantageConstants(discount=1.0, trace=1.0, penalty=0.0, buffer=1, overlong=0.0)


def require_known(estimator: str | None) -> None:
    """Require a stated estimator to be one of `ESTIMATORS`.

    Raises:
        WrongUseError: the estimator is unknown.
    """
    if estimator not in (None, *ESTIMATORS):
        raise WrongUseError(
            f"advantages={estimator!r} is unknown", f"choose one of {', '.join(ESTIMATORS)}"
        )


def estimated(estimator: str, rewards: Values, groups: Integers) -> Values:
    """The advantages of samples, [N]."""
    of_samples = np.arange(len(rewards))
    none = np.zeros(len(rewards))
    rollouts = advantages.Rollouts(
        rewards=rewards,
        groups=groups,
        trajectories=of_samples,
        rejected=none.astype(bool),
        sample=of_samples,
        mask=~none.astype(bool),
        values=none,
        divergences=none,
    )
    function, conventions = ESTIMATORS[estimator]
    found: Values = function(rollouts, _NONE, conventions)
    return found


def rewards_over_advantages(estimator: str, rewards: Values, groups: Integers) -> Values:
    """The factors, [N], that turn gradients into those that rewards would give as advantages.

    Raises:
        WrongUseError: the advantage of a sample is 0, so the sample has no gradient.
    """
    made = estimated(estimator, rewards, groups)
    if not made.all():
        raise WrongUseError(
            f"sample {int(np.argmin(np.abs(made)))} has an advantage of 0 by {estimator}",
            "choose cases in which each prompt has several samples",
        )
    return rewards / made
