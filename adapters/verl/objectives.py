"""What verl needs for each objective: settings, models and the samples' rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import FixedMode, Option
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    CORRECTIONS,
    FROM_REWARDS,
    OFF_POLICY,
    POLICY_LOSSES,
    Objective,
)
from adapters.toolkit.settings import WITH_CRITIC
from adapters.verl.importing import has_default_trainer, module
from reference.aggregation import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

    Settings = dict[str, object]
    """Values by their path in verl's configuration."""

ACTOR, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout"))
ALGORITHM = "algorithm"
CORRECTION = f"{ALGORITHM}.rollout_correction"
ESTIMATOR = f"{ALGORITHM}.adv_estimator"
GIVEN = "given"
"""The name under which given advantages are registered as an estimator."""

COMPARED: Settings = {f"{ROLLOUT}.calculate_log_probs": True}
"""The setting that verl's documentation requires to compare rollout and old policy."""

DISCOUNTED: Settings = {
    f"{ALGORITHM}.gamma": ADVANTAGE_CONSTANTS.discount,
    f"{ALGORITHM}.lam": ADVANTAGE_CONSTANTS.trace,
}
PENALISED: Settings = {
    f"{ALGORITHM}.use_kl_in_reward": True,
    f"{ALGORITHM}.kl_penalty": "kl",
    f"{ALGORITHM}.kl_ctrl.kl_coef": ADVANTAGE_CONSTANTS.penalty,
}

ESTIMATORS: dict[Objective, Settings] = {
    Objective.GROUP_NORMALISED: {ESTIMATOR: "grpo"},
    Objective.GROUP_CENTRED: {ESTIMATOR: "grpo", f"{ALGORITHM}.norm_adv_by_std_in_grpo": False},
    Objective.LEAVE_ONE_OUT: {ESTIMATOR: "rloo"},
    Objective.REINFORCE_PP: {ESTIMATOR: "reinforce_plus_plus", **DISCOUNTED, **PENALISED},
    Objective.GAE: {ESTIMATOR: "gae", **DISCOUNTED},
    Objective.PENALISED_GAE: {ESTIMATOR: "gae", **DISCOUNTED, **PENALISED},
}
"""verl's advantage estimators. Its ``reinforce_plus_plus_baseline`` uses only sample rewards,
without the penalty on each token that `REINFORCE_PP_BASELINE` has."""

OF_OBJECTIVES: dict[Objective, Settings] = {
    Objective.DUAL_CLIP: {f"{ACTOR}.clip_ratio_c": CONSTANTS.dual_clip},
    Objective.SAPO: {
        f"{ACTOR}.tau_pos": CONSTANTS.positive_temperature,
        f"{ACTOR}.tau_neg": CONSTANTS.negative_temperature,
    },
    Objective.KL_COV: {
        f"{ACTOR}.policy_loss.kl_cov_ratio": 1.0,
        f"{ACTOR}.policy_loss.ppo_kl_coef": CONSTANTS.kl_penalty,
    },
    Objective.DRO: {f"{ACTOR}.policy_loss.dro_beta": CONSTANTS.kl_penalty},
    # The lower bound on a token's ratio is then the reciprocal.
    Objective.REJECTION: {
        **COMPARED,
        f"{CORRECTION}.rollout_rs": "token_k1",
        f"{CORRECTION}.rollout_rs_threshold": 2.0,
    },
    Objective.TIS_TOKEN: {
        **COMPARED,
        f"{CORRECTION}.rollout_is": "token",
        f"{CORRECTION}.rollout_is_threshold": CONSTANTS.truncation,
    },
    Objective.TIS_SEQUENCE: {
        **COMPARED,
        f"{CORRECTION}.rollout_is": "sequence",
        f"{CORRECTION}.rollout_is_threshold": CONSTANTS.truncation,
    },
    **ESTIMATORS,
}
"""The settings of each objective, by path."""

OF_LOSSES = frozenset(
    {
        *(Objective.POLICY, Objective.ENTROPY, Objective.KL, Objective.COMBINED, Objective.VALUE),
        *OFF_POLICY,
        *POLICY_LOSSES,
    }
) - {*CORRECTIONS}
"""Objectives of the loss alone, for which the legacy trainer is run: not for what precedes it."""

FIXED_MODES = {
    objective: FixedMode(
        Mode.SAMPLE_MEAN,
        f"verl/trainer/ppo/core_algos.py (compute_policy_loss_{objective}: seq-mean-token-mean)",
    )
    for objective in (Objective.SAPO, Objective.GSPO)
}
"""Policy losses for which verl requires or recommends one ``loss_agg_mode``, as their papers do.
GSPO accepts any mode since 0.9.1."""

VANILLA = {Objective.DUAL_CLIP}
"""Our policy losses that use verl's plain one, whose third bound is always on."""


def objectives() -> frozenset[Objective]:
    """The objectives of this version, given its registered losses and estimators."""
    algorithms = module("trainer.ppo.core_algos")
    losses = {one for one in POLICY_LOSSES if one.value in algorithms.POLICY_LOSS_REGISTRY}
    estimators = {
        objective
        for objective, settings in ESTIMATORS.items()
        if settings[ESTIMATOR] in algorithms.ADV_ESTIMATOR_REGISTRY
    }
    terms = {Objective.ENTROPY, Objective.KL, Objective.COMBINED}
    plain = {Objective.POLICY, Objective.OFF_POLICY, Objective.REJECTION, *CORRECTIONS}
    others = {Objective.SFT, *WITH_CRITIC}
    return _driven(frozenset({*plain, *terms, *losses, *estimators, *VANILLA, *others}))


def _driven(objectives: frozenset[Objective]) -> frozenset[Objective]:
    """The objectives for which this version's trainer is run.

    Critics in versions before 0.8.0 have an engine with another configuration.
    """
    if has_default_trainer():
        return objectives
    of_critic = module("workers.config").FSDPCriticConfig.__dataclass_fields__
    return objectives & (OF_LOSSES if "fsdp" in of_critic else OF_LOSSES - WITH_CRITIC)


def in_default_trainer(job: Job) -> bool:
    """Whether the default trainer trains the job, not the legacy one or the fine-tuning one."""
    is_legacy = Option.LEGACY_TRAINER in job.layout.options or not has_default_trainer()
    return not is_legacy and job.objective is not Objective.SFT


def gives_old_log_probs(job: Job) -> bool:
    """Whether the old policy's log-probabilities are given instead of computed by the model."""
    return job.objective in OFF_POLICY


def token_rewards(batch: ProbedBatch, index: int) -> NDArray[np.float64]:
    """The rewards of a sample's tokens: [response].

    verl puts a sample's reward at its last token. If advantages are given, rewards are these.
    """
    if batch.objective not in FROM_REWARDS:
        return batch.advantages[index]
    rewards = np.zeros(len(batch.responses[index]))
    rewards[-1] = batch.rewards[index]
    return rewards
