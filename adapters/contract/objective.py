"""Objectives of training, and the metrics that are logged.

A framework's loss is a sum of terms, each a reduction of a quantity of every token: its
policy-gradient loss, its entropy, its divergence from a reference policy. A job has one objective,
which determines the terms. Every term is linear in its quantity and thus described by weights.
"""

from __future__ import annotations

from enum import StrEnum

from reference.loss_constants import AdvantageConstants, LossConstants


class Objective(StrEnum):
    """The loss that is trained."""

    # The clipped policy-gradient loss (PPO, arXiv:1707.06347) where the ratio is exactly 1.
    POLICY = "policy"
    OFF_POLICY = "off_policy"  # PPO's loss with other ratios: some tokens are clipped
    TIS_TOKEN = "tis_token"  # the same with truncated importance sampling of tokens
    TIS_SEQUENCE = "tis_sequence"  # the same with truncated importance sampling of sequences
    # The policy loss with rejection sampling, which removes tokens from the mask and leaves the
    # losses of the others as they are.
    REJECTION = "rejection"
    ENTROPY = "entropy"  # the entropy bonus alone: all advantages are 0
    # The divergence from a reference policy alone: all advantages are 0. The estimator is k1, whose
    # derivative by a log-probability is 1.
    KL = "kl"
    COMBINED = "combined"  # the sum of policy loss, entropy bonus and divergence
    DUAL_CLIP = "dual_clip"  # the dual-clip policy loss (arXiv:1912.09729)
    GSPO = "gspo"  # ratios of whole sequences (arXiv:2507.18071)
    CISPO = "cispo"  # clipped importance weights on the log-probability (arXiv:2506.13585)
    SAPO = "sapo"  # soft gates instead of clipping (arXiv:2511.20347)
    CLIP_COV = "clip_cov"  # tokens of large covariance are clipped (arXiv:2505.22617)
    KL_COV = "kl_cov"  # tokens of large covariance are penalised (arXiv:2505.22617)
    GEO_MEAN = "geo_mean"  # geometric means of clipped ratios (GMPO, arXiv:2507.20673)
    GPG = "gpg"  # advantages times log-probabilities, without ratios (arXiv:2504.02546)
    # Sequences are dropped by their mean ratio to the rollout policy, and others' tokens corrected.
    SEQUENCE_MASKED = "sequence_masked"
    DRO = "dro"  # the same with a quadratic penalty on the log-ratio (arXiv:2405.19107)
    # The policy loss with a ratio of 1 and advantages that the framework computes from rewards.
    GROUP_NORMALISED = "group_normalised"
    GROUP_CENTRED = "group_centred"
    LEAVE_ONE_OUT = "leave_one_out"
    GROUP_WHITENED = "group_whitened"
    REINFORCE_PP = "reinforce_pp"
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline"
    GAE = "gae"
    PENALISED_GAE = "penalised_gae"  # with the divergence from the reference policy in rewards
    SFT = "sft"  # negative log-likelihood
    VALUE = "value"  # clipped squared error of a critic
    ROUTER = "router"  # the losses that a mixture of experts adds itself: all advantages are 0


POLICY_LOSSES = (
    Objective.DUAL_CLIP,
    Objective.GSPO,
    Objective.CISPO,
    Objective.SAPO,
    Objective.CLIP_COV,
    Objective.KL_COV,
    Objective.GEO_MEAN,
    Objective.GPG,
    Objective.DRO,
    Objective.SEQUENCE_MASKED,
)
"""Policy losses other than PPO's."""

ONE_ADVANTAGE = (Objective.GSPO, Objective.GEO_MEAN)
"""Policy losses whose samples have one advantage for all tokens."""

CORRECTIONS = (Objective.TIS_TOKEN, Objective.TIS_SEQUENCE)
"""Corrections of PPO's loss for a rollout policy that is not the old one."""

OF_ROLLOUT_RATIOS = (*CORRECTIONS, Objective.SEQUENCE_MASKED)
"""Policy losses that depend on the ratio of the old policy to that of the rollouts."""

OFF_POLICY = (Objective.OFF_POLICY, *POLICY_LOSSES, *CORRECTIONS)
"""Policy losses that are trained with other ratios than 1."""

OF_GROUPS = (
    Objective.GROUP_NORMALISED,
    Objective.GROUP_CENTRED,
    Objective.LEAVE_ONE_OUT,
    Objective.GROUP_WHITENED,
    Objective.REINFORCE_PP_BASELINE,
)
"""Estimators of advantages that compare the samples of a prompt."""

OF_VALUES = (Objective.GAE, Objective.PENALISED_GAE)
"""Estimators of advantages with a critic's values."""

FROM_REWARDS = (*OF_GROUPS, Objective.REINFORCE_PP, *OF_VALUES)
"""Objectives whose advantages the framework computes, by an estimator of this name."""

PENALISING = (
    Objective.REINFORCE_PP,
    Objective.REINFORCE_PP_BASELINE,
    Objective.PENALISED_GAE,
)
"""Estimators with a penalty on the divergence from the reference policy."""

# Coefficients of auxiliary losses: powers of two, so that nothing is rounded.
ENTROPY_COEFFICIENT = 0.5
KL_COEFFICIENT = 0.25
ROUTER_COEFFICIENT = 0.5  # of the load-balancing loss of a mixture of experts
Z_COEFFICIENT = 0.25  # of its z-loss

CONSTANTS = LossConstants(
    clip_low=0.2,
    clip_high=0.3125,
    dual_clip=3.0,
    positive_temperature=1.0,
    negative_temperature=1.5,
    kl_penalty=0.5,
    truncation=2.0,
    kept_low=0.7,
    kept_high=1.25,
)
"""Constants of all policy losses, as adapters configure them: those of either sign differ."""

ADVANTAGE_CONSTANTS = AdvantageConstants(discount=0.75, trace=0.5, penalty=KL_COEFFICIENT)
"""Constants of all estimators of advantages, as adapters configure them."""


class Metric(StrEnum):
    """A logged number: the reduction of a quantity of every token."""

    POLICY_LOSS = "policy_loss"
    LOSS = "loss"  # the sum of all terms with their coefficients
    CLIP_FRACTION = "clip_fraction"  # 1 for a token whose ratio is clipped, else 0
    POLICY_KL = "policy_kl"  # old log-probability minus new
    ENTROPY = "entropy"
    KL = "kl"  # log-probability minus the reference policy's
    REJECTED = "rejected"  # 1 for a token that rejection sampling removes from the mask, else 0
    # Of a batch of rollouts, before they are trained on.
    REWARD = "reward"  # of a sample
    RESPONSE_LENGTH = "response_length"  # of a sample, in tokens
    ADVANTAGE = "advantage"
    VALUE = "value"  # a critic's
    REFERENCE_LOG_PROB = "reference_log_prob"  # the reference policy's log-probability
    DIVERGENCE = "divergence"  # the old policy's log-probability minus the reference policy's


OF_SAMPLES = (Metric.REWARD, Metric.RESPONSE_LENGTH)
"""Numbers of a batch of rollouts that each sample has one of."""

OF_ROLLOUTS = (
    *OF_SAMPLES,
    Metric.ADVANTAGE,
    Metric.VALUE,
    Metric.REFERENCE_LOG_PROB,
    Metric.DIVERGENCE,
)
"""Numbers that are logged once for a batch of rollouts, and not for each step."""
