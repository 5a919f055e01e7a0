"""verl's policy losses that correct for the rollout policy, compare tokens or bound divergences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import CONSTANTS, Objective
from adapters.verl.importing import module
from adapters.verl.sizes import batch_normalize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.framework import Settings
    from reference.step import Step

LOSS = "policy_loss.loss_mode"
CLIPPED: Settings = {
    "clip_ratio_low": CONSTANTS.clip_low,
    "clip_ratio_high": CONSTANTS.clip_high,
}
# verl's documentation requires it to compare the policy of the rollouts and the old one.
COMPARED: Settings = {"actor_rollout_ref.rollout.calculate_log_probs": True}
SAMPLING = "algorithm.rollout_correction.rollout_is"
TRUNCATED: Settings = {**CLIPPED, **COMPARED, f"{SAMPLING}_threshold": CONSTANTS.truncation}


def _criterion(job: Job) -> str:
    """The criterion of rejection: each token's log-ratio, or its mean over a whole sample."""
    kept = [np.unique(step.mask[tokens]) for step in job.steps for tokens in _trained(step)]
    return "token_k1" if any(len(one) > 1 for one in kept) else "seq_mean_k1"


def _trained(step: Step) -> Iterator[NDArray[np.int64]]:
    """The tokens of each sample that are active before rejection sampling."""
    for response in step.responses:
        tokens = np.arange(len(step.mask))[response]
        yield tokens[step.mask_before_rejection[response]]


def _criteria(job: Job) -> list[str]:
    """All criteria of this version: the one that rejects, and those whose numbers are logged."""
    helper = module("trainer.ppo.rollout_corr_helper")
    others = {*getattr(helper, "SUPPORTED_ROLLOUT_RS_OPTIONS", ())} - {_criterion(job)}
    return [_criterion(job), *sorted(others)]


def _bounds(job: Job) -> str:
    """The bounds of all criteria: no other one rejects anything."""
    others = _criteria(job)[1:]
    lax = ("1e-30_1e30" if criterion.endswith("k1") else "1e30" for criterion in others)
    return ",".join(["0.5_2.0", *lax])


REJECTION = "algorithm.rollout_correction.rollout_rs"
# The lower bound on a ratio is then the reciprocal.
REJECTED: Settings = {**COMPARED, REJECTION: _criterion, f"{REJECTION}_threshold": 2.0}
ALL_CRITERIA: Settings = {
    **REJECTED,
    REJECTION: lambda job: ",".join(_criteria(job)),
    f"{REJECTION}_threshold": _bounds,
}
OF_LOSS = "policy_loss.rollout_correction"
"""The section of a loss that computes the correction itself."""

BOUNDS = f"{CONSTANTS.kept_low:g}_{CONSTANTS.truncation:g}"


def _dppo(divergence: str, low: float, high: float) -> Settings:
    return {LOSS: f"dppo_{divergence}", "clip_ratio_low": low, "clip_ratio_high": high}


OBJECTIVES: dict[Objective, Settings] = {
    Objective.TIS_TOKEN: {**TRUNCATED, SAMPLING: "token"},
    Objective.TIS_SEQUENCE: {**TRUNCATED, SAMPLING: "sequence"},
    Objective.COVARIANCE_CLIPPED: {
        **CLIPPED,
        LOSS: "clip_cov",
        "policy_loss.clip_cov_ratio": 1.0,  # else tokens are drawn at random
        "policy_loss.clip_cov_lb": CONSTANTS.covariance_low,
        "policy_loss.clip_cov_ub": CONSTANTS.covariance_high,
    },
    Objective.COVARIANCE_PENALISED: {
        LOSS: "kl_cov",
        "policy_loss.kl_cov_ratio": CONSTANTS.covariance_fraction,
        "policy_loss.ppo_kl_coef": CONSTANTS.kl_penalty,
    },
    Objective.DPPO_TV: _dppo("tv", CONSTANTS.variation_low, CONSTANTS.variation_high),
    Objective.DPPO_KL: _dppo("kl", CONSTANTS.divergence_low, CONSTANTS.divergence_high),
    Objective.TIS_NORMALISED: {
        **TRUNCATED,
        SAMPLING: "token",
        f"{SAMPLING}_batch_normalize": batch_normalize,
    },
    Objective.ICEPOP: {**TRUNCATED, SAMPLING: "token", f"{SAMPLING}_threshold": BOUNDS},
    Objective.REINFORCE_NORMALISED: {
        **COMPARED,
        "algorithm.rollout_correction.bypass_mode": True,
        LOSS: "bypass_mode",
        f"{OF_LOSS}.loss_type": "reinforce",
        f"{OF_LOSS}.rollout_is": "token",
        f"{OF_LOSS}.rollout_is_threshold": CONSTANTS.truncation,
        f"{OF_LOSS}.rollout_is_batch_normalize": True,
    },
}
