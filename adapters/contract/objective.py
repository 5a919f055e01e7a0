"""Objectives of training, and the metrics that are logged.

A framework's loss is a sum of terms, each a reduction of a quantity of every token: its
policy-gradient loss, its entropy, its divergence from a reference policy. A job has one objective,
which determines the terms. Every term is linear in its quantity and thus described by weights.
"""

from __future__ import annotations

from enum import StrEnum

from reference.losses.constants import AdvantageConstants, LossConstants


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
    REJECTION_OFF_POLICY = "rejection_off_policy"  # the same with other ratios of new to old policy
    REJECTION_COMBINED = "rejection_combined"  # with entropy bonus and divergence besides
    ENTROPY = "entropy"  # the entropy bonus alone: all advantages are 0
    # The divergence from a reference policy alone: all advantages are 0. The estimator is k1, whose
    # derivative by a log-probability is 1.
    KL = "kl"
    # The sum of policy loss and entropy bonus.
    WITH_ENTROPY = "with_entropy"
    # The divergence alone, with a coefficient that follows it from step to step.
    ADAPTIVE_KL = "adaptive_kl"
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
    # Covariances select tokens: clip-cov clips all of some size, kl-cov penalises the largest.
    COVARIANCE_CLIPPED = "covariance_clipped"
    COVARIANCE_PENALISED = "covariance_penalised"
    DPPO_TV = "dppo_tv"  # tokens whose probability has moved too far (arXiv:2602.04879)
    DPPO_KL = "dppo_kl"  # the same by another divergence
    IMPORTANCE_SAMPLING = "importance_sampling"  # ratios without clipping
    ROLLOUT_IS = "rollout_is"  # ratios to the rollout policy, 0 if they are out of bounds
    REINFORCE_NORMALISED = "reinforce_normalised"  # ratios to it, over their mean over the batch
    TIS_NORMALISED = "tis_normalised"  # truncated ratios over their mean over the batch
    TIS_BOUNDED = "tis_bounded"  # ratios between two bounds
    ICEPOP = "icepop"  # ratios, 0 if they are out of bounds (arXiv:2510.18855)
    SEQUENCE_ICEPOP = "sequence_icepop"  # the same with products over sequences
    PRODUCT_MASKED = "product_masked"  # sequences are dropped by the product of their ratios
    OUTLIER_MASKED = "outlier_masked"  # sequences are dropped if one of their tokens is an outlier
    OPSM = "opsm"  # off-policy sequences of negative advantage are dropped (arXiv:2512.02556)
    M2PO = "m2po"  # tokens of large second moment are dropped (arXiv:2510.01161)
    # The policy loss with a ratio of 1 and advantages that the framework computes from rewards.
    GROUP_NORMALISED = "group_normalised"
    GROUP_CENTRED = "group_centred"
    OVERLONG = "overlong"  # centred, of rewards less a penalty on long responses (DAPO)
    # Centred, where samples that are cut off are masked: none of them is.
    COMPLETE = "complete"
    WEIGHTED = "weighted"  # centred, of the weighted sum of several reward functions
    MEAN_NORMALISED = "mean_normalised"
    LEAVE_ONE_OUT = "leave_one_out"
    OTHERS_NORMALISED = "others_normalised"
    GROUP_WHITENED = "group_whitened"
    REINFORCE_PP = "reinforce_pp"
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline"
    # On-policy distillation: the divergence from a teacher is subtracted from centred rewards.
    DISTILLED = "distilled"
    GAE = "gae"
    PENALISED_GAE = "penalised_gae"  # with the divergence from the reference policy in rewards
    SFT = "sft"  # negative log-likelihood
    VALUE = "value"  # squared error of a critic, whose values are within the bound of clipping
    VALUE_CLIPPED = "value_clipped"  # the same with old values beyond the bound
    # The divergence from a teacher alone, whose derivative is the log-ratio to it: half of its
    # square, or, as the negative advantage of a policy loss, itself. All advantages are 0.
    TEACHER = "teacher"
    TEACHER_REWARD = "teacher_reward"
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
    Objective.COVARIANCE_CLIPPED,
    Objective.COVARIANCE_PENALISED,
    Objective.DPPO_TV,
    Objective.DPPO_KL,
    Objective.IMPORTANCE_SAMPLING,
    Objective.ROLLOUT_IS,
    Objective.REINFORCE_NORMALISED,
    Objective.OPSM,
)
"""Policy losses other than PPO's."""

ONE_ADVANTAGE = (Objective.GSPO, Objective.GEO_MEAN)
"""Policy losses whose samples have one advantage for all tokens."""

CORRECTIONS = (
    Objective.TIS_TOKEN,
    Objective.TIS_SEQUENCE,
    Objective.TIS_NORMALISED,
    Objective.TIS_BOUNDED,
    Objective.ICEPOP,
    Objective.SEQUENCE_ICEPOP,
    Objective.PRODUCT_MASKED,
    Objective.OUTLIER_MASKED,
    Objective.M2PO,
)
"""Corrections of PPO's loss for a rollout policy that is not the old one."""

OF_ROLLOUT_RATIOS = (*CORRECTIONS, Objective.SEQUENCE_MASKED)
"""Policy losses that depend on the ratio of the old policy to that of the rollouts."""

OF_THE_ROLLOUT_POLICY = (
    Objective.DPPO_TV,
    Objective.DPPO_KL,
    Objective.ROLLOUT_IS,
    Objective.REINFORCE_NORMALISED,
    Objective.OPSM,
)
"""Policy losses whose old policy is that of the rollouts."""

OF_LOG_PROBS = (
    Objective.COVARIANCE_CLIPPED,
    Objective.COVARIANCE_PENALISED,
    Objective.DPPO_TV,
    Objective.DPPO_KL,
    Objective.ROLLOUT_IS,
    Objective.REINFORCE_NORMALISED,
)
"""Policy losses that depend on the new log-probability itself: it is not 0.

Those of the last two do if the ratio that multiplies it has a gradient, which it must not have.
"""

OF_SEQUENCES = (
    Objective.GSPO,
    Objective.GEO_MEAN,
    Objective.TIS_SEQUENCE,
    Objective.SEQUENCE_MASKED,
    Objective.SEQUENCE_ICEPOP,
    Objective.PRODUCT_MASKED,
    Objective.OUTLIER_MASKED,
    Objective.OPSM,
)
"""Policy losses that depend on whole sequences."""

SELECTING = (Objective.COVARIANCE_CLIPPED, Objective.COVARIANCE_PENALISED, Objective.M2PO)
"""Policy losses that select tokens by comparing them with the others of a batch."""

COMPARING_ADVANTAGES = (
    Objective.CLIP_COV,
    Objective.COVARIANCE_CLIPPED,
    Objective.COVARIANCE_PENALISED,
)
"""Policy losses that select tokens by covariances of advantages and log-probabilities."""

NORMALISED = (Objective.TIS_NORMALISED, Objective.REINFORCE_NORMALISED)
"""Policy losses with a mean over a batch."""

OFF_POLICY = (
    Objective.OFF_POLICY,
    Objective.REJECTION_OFF_POLICY,
    *POLICY_LOSSES,
    *CORRECTIONS,
)
"""Policy losses that are trained with other ratios than 1."""

WITH_REJECTION = (
    Objective.REJECTION,
    Objective.REJECTION_OFF_POLICY,
    Objective.REJECTION_COMBINED,
)
"""Objectives with rejection sampling."""

OF_TERMS = (Objective.COMBINED, Objective.REJECTION_COMBINED)
"""Objectives with an entropy bonus and a divergence besides the policy loss."""

OF_GROUPS = (
    Objective.GROUP_NORMALISED,
    Objective.GROUP_CENTRED,
    Objective.OVERLONG,
    Objective.COMPLETE,
    Objective.WEIGHTED,
    Objective.MEAN_NORMALISED,
    Objective.LEAVE_ONE_OUT,
    Objective.OTHERS_NORMALISED,
    Objective.GROUP_WHITENED,
    Objective.REINFORCE_PP_BASELINE,
    Objective.DISTILLED,
)
"""Estimators of advantages that compare the samples of a prompt."""

OF_CRITIC = (Objective.VALUE, Objective.VALUE_CLIPPED)
"""Losses of a critic."""

OF_TEACHER = (Objective.TEACHER, Objective.TEACHER_REWARD)
"""Losses by the log-probabilities of a teacher."""

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
    value_clip=0.25,
    outlier_low=0.125,
    outlier_high=8.0,
    covariance_low=1.0,
    covariance_high=5.0,
    covariance_fraction=0.25,
    variation_low=0.015625,
    variation_high=0.0625,
    divergence_low=0.0025,
    divergence_high=0.01,
    sequence_divergence=0.1875,
    second_moment=0.375,
)
"""Constants of all policy losses, as adapters configure them: those of either sign differ."""

ADVANTAGE_CONSTANTS = AdvantageConstants(
    discount=0.75, trace=0.5, penalty=KL_COEFFICIENT, buffer=8, overlong=0.5
)
"""Constants of all estimators of advantages, as adapters configure them."""


class Metric(StrEnum):
    """A logged number: the reduction of a quantity of every token."""

    POLICY_LOSS = "policy_loss"
    LOSS = "loss"  # the sum of all terms with their coefficients
    CLIP_FRACTION = "clip_fraction"  # 1 for a token whose ratio is clipped, else 0
    POLICY_KL = "policy_kl"  # old log-probability minus new
    RATIO = "ratio"  # new probability over old
    ENTROPY = "entropy"
    KL = "kl"  # log-probability minus the reference policy's
    VALUE_LOSS = "value_loss"  # squared error of a critic's value
    KL_COEFFICIENT = "kl_coefficient"  # the divergence's coefficient that the next step uses
    REJECTED = "rejected"  # 1 for a token that rejection sampling removes from the mask, else 0
    # Of a batch of rollouts, before they are trained on.
    REWARD = "reward"  # of a sample
    RESPONSE_LENGTH = "response_length"  # of a sample, in tokens
    ADVANTAGE = "advantage"
    VALUE = "value"  # a critic's
    REFERENCE_LOG_PROB = "reference_log_prob"  # the reference policy's log-probability
    DIVERGENCE = "divergence"  # the old policy's log-probability minus the reference policy's


OF_SAMPLES = (Metric.REWARD, Metric.RESPONSE_LENGTH)
"""Numbers of a batch of rollouts that are per sample, and not per token."""

OF_ROLLOUTS = (
    *OF_SAMPLES,
    Metric.ADVANTAGE,
    Metric.VALUE,
    Metric.REFERENCE_LOG_PROB,
    Metric.DIVERGENCE,
)
"""Numbers that are logged once for a batch of rollouts, and not for each step."""
