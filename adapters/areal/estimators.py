"""AReaL's configuration of advantages that are computed from rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import length_limit
from adapters.contract.objective import ADVANTAGE_CONSTANTS, Objective
from reference.aggregation import EstimatorConventions, TokenSet

if TYPE_CHECKING:
    from adapters.contract import Job


def group_size(job: Job) -> int:
    """The samples of the largest prompt."""
    return max(int(np.unique(step.groups, return_counts=True)[1].max()) for step in job.steps)


def _reward_clip(job: Job) -> float | str:
    """A bound above all rewards; empty if the default of 20 is one."""
    given = [step.rewards for step in job.steps if step.rewards is not None]
    largest = max((float(np.abs(rewards).max()) for rewards in given), default=0.0)
    return 2 * largest if largest > 20 else ""


OF_PROMPTS = {
    "reward_norm.mean_level": "group",
    "reward_norm.group_size": group_size,
    "reward_clip": _reward_clip,
}
WHITENED = {
    "discount": ADVANTAGE_CONSTANTS.discount,
    "adv_norm.mean_level": "batch",
    "adv_norm.std_level": "batch",
    "adv_norm.eps": 1e-8,
}
PENALISED = {"kl_ctl": ADVANTAGE_CONSTANTS.penalty}
WITH_CRITIC = {**WHITENED, "gae_lambda": ADVANTAGE_CONSTANTS.trace}

OF_REWARDS = {
    Objective.GROUP_NORMALISED: {**OF_PROMPTS, "reward_norm.std_level": "group"},
    Objective.GROUP_CENTRED: {**OF_PROMPTS, "reward_norm.std_level": None},
    Objective.OVERLONG: {
        **OF_PROMPTS,
        "reward_norm.std_level": None,
        "overlong_reward_penalty": True,
        "overlong_tokens": ADVANTAGE_CONSTANTS.buffer,
        "overlong_penalty_factor": ADVANTAGE_CONSTANTS.overlong,
        "max_new_tokens": lambda job: length_limit(job.steps),
    },
    Objective.COMPLETE: {
        **OF_PROMPTS,
        "reward_norm.std_level": None,
        "mask_no_eos_with_zero": True,
        "max_new_tokens": lambda job: length_limit(job.steps),
    },
    Objective.LEAVE_ONE_OUT: {
        **OF_PROMPTS,
        "reward_norm.mean_leave1out": True,
        "reward_norm.std_level": None,
    },
    Objective.REINFORCE_PP: {**WHITENED, **PENALISED, "gae_lambda": 1.0},
    Objective.GAE: WITH_CRITIC,
    Objective.PENALISED_GAE: {**WITH_CRITIC, **PENALISED},
}
"""The options of each estimator."""

OF_ACTIVE_TOKENS = EstimatorConventions(
    transitions=TokenSet.ACTIVE, rewarded=TokenSet.RESPONSE, valued=TokenSet.ACTIVE
)
"""Returns and GAE skip masked tokens, and a sample's reward is at its last token."""
