"""Objectives of training, and the metrics that are logged.

A framework's loss is a sum of terms, each a reduction of a quantity of every token: its
policy-gradient loss, its entropy, its divergence from a reference policy. A job has one objective,
which determines the terms. Every term is linear in its quantity and thus described by weights.
"""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import Self

from reference.losses.constants import AdvantageConstants, LossConstants


class Trait(Flag):
    """A trait by which checks, adapters and the reference tell objectives apart."""

    NONE = 0
    POLICY_LOSS = auto()  # a policy loss other than PPO's
    CORRECTION = auto()  # corrects PPO's loss for a rollout policy that is not the old one
    ROLLOUT_RATIO = auto()  # depends on the ratio of the old policy to it, as corrections do
    ROLLOUT_POLICY = auto()  # the old policy is that of the rollouts
    # Depends on the new log-probability itself, which is not 0. Losses with a ratio to the rollout
    # policy do only if the ratio has a gradient, which it must not have.
    LOG_PROB = auto()
    ONE_ADVANTAGE = auto()  # samples have one advantage for all tokens
    SEQUENCE = auto()  # depends on whole sequences
    SELECTING = auto()  # selects tokens by comparing them with the others of a batch
    COVARIANCE = auto()  # selects tokens by covariances of advantages and log-probabilities
    BATCH_MEAN = auto()  # divides by a mean over a batch
    REJECTION = auto()  # with rejection sampling
    TERMS = auto()  # with an entropy bonus and a divergence besides the policy loss
    GROUP = auto()  # an estimator of advantages that compares the samples of a prompt
    VALUES = auto()  # an estimator of advantages with a critic's values
    PENALTY = auto()  # an estimator with a penalty on the divergence from the reference policy
    CRITIC = auto()  # a loss of a critic
    TEACHER = auto()  # a loss by the log-probabilities of a teacher


class Objective(StrEnum):
    """The loss that is trained."""

    traits: Trait

    def __new__(cls, value: str, traits: Trait = Trait.NONE) -> Self:
        """An objective by its name in ids of findings, with its traits."""
        made = str.__new__(cls, value)
        made._value_, made.traits = value, traits
        return made

    # The clipped policy-gradient loss (PPO, arXiv:1707.06347) where the ratio is exactly 1.
    POLICY = "policy"
    OFF_POLICY = "off_policy"  # PPO's loss with other ratios: some tokens are clipped
    # The same with truncated importance sampling of tokens.
    TIS_TOKEN = "tis_token", Trait.CORRECTION
    # The same with truncated importance sampling of sequences.
    TIS_SEQUENCE = "tis_sequence", Trait.CORRECTION | Trait.SEQUENCE
    # The policy loss with rejection sampling, which removes tokens from the mask and leaves the
    # losses of the others as they are.
    REJECTION = "rejection", Trait.REJECTION
    # The same with other ratios of new to old policy.
    REJECTION_OFF_POLICY = "rejection_off_policy", Trait.REJECTION
    # With entropy bonus and divergence besides.
    REJECTION_COMBINED = "rejection_combined", Trait.REJECTION | Trait.TERMS
    ENTROPY = "entropy"  # the entropy bonus alone: all advantages are 0
    # The divergence from a reference policy alone: all advantages are 0. The estimator is k1, whose
    # derivative by a log-probability is 1.
    KL = "kl"
    # The sum of policy loss and entropy bonus.
    WITH_ENTROPY = "with_entropy"
    # The sum of the losses of a policy and of a value head that shares its trunk.
    WITH_VALUE = "with_value"
    # The divergence alone, with a coefficient that follows it from step to step.
    ADAPTIVE_KL = "adaptive_kl"
    COMBINED = "combined", Trait.TERMS  # the sum of policy loss, entropy bonus and divergence
    DUAL_CLIP = "dual_clip", Trait.POLICY_LOSS  # the dual-clip policy loss (arXiv:1912.09729)
    # Ratios of whole sequences (arXiv:2507.18071).
    GSPO = "gspo", Trait.POLICY_LOSS | Trait.ONE_ADVANTAGE | Trait.SEQUENCE
    # Clipped importance weights on the log-probability (arXiv:2506.13585).
    CISPO = "cispo", Trait.POLICY_LOSS
    SAPO = "sapo", Trait.POLICY_LOSS  # soft gates instead of clipping (arXiv:2511.20347)
    # Tokens of large covariance are clipped (arXiv:2505.22617).
    CLIP_COV = "clip_cov", Trait.POLICY_LOSS | Trait.COVARIANCE
    # Tokens of large covariance are penalised (arXiv:2505.22617).
    KL_COV = "kl_cov", Trait.POLICY_LOSS
    # Geometric means of clipped ratios (GMPO, arXiv:2507.20673).
    GEO_MEAN = "geo_mean", Trait.POLICY_LOSS | Trait.ONE_ADVANTAGE | Trait.SEQUENCE
    # Advantages times log-probabilities, without ratios (arXiv:2504.02546).
    GPG = "gpg", Trait.POLICY_LOSS
    # The same with a quadratic penalty on the log-ratio (arXiv:2405.19107).
    DRO = "dro", Trait.POLICY_LOSS
    # Sequences are dropped by their mean ratio to the rollout policy, and others' tokens corrected.
    SEQUENCE_MASKED = "sequence_masked", Trait.POLICY_LOSS | Trait.ROLLOUT_RATIO | Trait.SEQUENCE
    # Covariances select tokens: clip-cov clips all of some size, kl-cov penalises the largest.
    COVARIANCE_CLIPPED = (
        "covariance_clipped",
        Trait.POLICY_LOSS | Trait.LOG_PROB | Trait.SELECTING | Trait.COVARIANCE,
    )
    COVARIANCE_PENALISED = (
        "covariance_penalised",
        Trait.POLICY_LOSS | Trait.LOG_PROB | Trait.SELECTING | Trait.COVARIANCE,
    )
    # Tokens whose probability has moved too far (arXiv:2602.04879).
    DPPO_TV = "dppo_tv", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    # The same by another divergence.
    DPPO_KL = "dppo_kl", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    IMPORTANCE_SAMPLING = "importance_sampling", Trait.POLICY_LOSS  # ratios without clipping
    # Ratios to the rollout policy, 0 if they are out of bounds.
    ROLLOUT_IS = "rollout_is", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    # Ratios to it, over their mean over the batch.
    REINFORCE_NORMALISED = (
        "reinforce_normalised",
        Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB | Trait.BATCH_MEAN,
    )
    # Truncated ratios over their mean over the batch.
    TIS_NORMALISED = "tis_normalised", Trait.CORRECTION | Trait.BATCH_MEAN
    TIS_BOUNDED = "tis_bounded", Trait.CORRECTION  # ratios between two bounds
    ICEPOP = "icepop", Trait.CORRECTION  # ratios, 0 if they are out of bounds (arXiv:2510.18855)
    # The same with products over sequences.
    SEQUENCE_ICEPOP = "sequence_icepop", Trait.CORRECTION | Trait.SEQUENCE
    # Sequences are dropped by the product of their ratios.
    PRODUCT_MASKED = "product_masked", Trait.CORRECTION | Trait.SEQUENCE
    # Sequences are dropped if one of their tokens is an outlier.
    OUTLIER_MASKED = "outlier_masked", Trait.CORRECTION | Trait.SEQUENCE
    # Off-policy sequences of negative advantage are dropped (arXiv:2512.02556).
    OPSM = "opsm", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.SEQUENCE
    # Tokens of large second moment are dropped (arXiv:2510.01161).
    M2PO = "m2po", Trait.CORRECTION | Trait.SELECTING
    # The policy loss with a ratio of 1 and advantages that the framework computes from rewards.
    GROUP_NORMALISED = "group_normalised", Trait.GROUP
    GROUP_CENTRED = "group_centred", Trait.GROUP
    # Centred, of rewards less a penalty on long responses (DAPO).
    OVERLONG = "overlong", Trait.GROUP
    # Centred, where samples that are cut off are masked: none of them is.
    COMPLETE = "complete", Trait.GROUP
    WEIGHTED = "weighted", Trait.GROUP  # centred, of the weighted sum of several reward functions
    MEAN_NORMALISED = "mean_normalised", Trait.GROUP
    LEAVE_ONE_OUT = "leave_one_out", Trait.GROUP
    OTHERS_NORMALISED = "others_normalised", Trait.GROUP
    GROUP_WHITENED = "group_whitened", Trait.GROUP
    REINFORCE_PP = "reinforce_pp", Trait.PENALTY
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline", Trait.GROUP | Trait.PENALTY
    # On-policy distillation: the divergence from a teacher is subtracted from centred rewards.
    DISTILLED = "distilled", Trait.GROUP
    GAE = "gae", Trait.VALUES
    # With the divergence from the reference policy in rewards.
    PENALISED_GAE = "penalised_gae", Trait.VALUES | Trait.PENALTY
    SFT = "sft"  # negative log-likelihood
    # Squared error of a critic, whose values are within the bound of clipping.
    VALUE = "value", Trait.CRITIC
    VALUE_CLIPPED = "value_clipped", Trait.CRITIC  # the same with old values beyond the bound
    # The divergence from a teacher alone, whose derivative is the log-ratio to it: half of its
    # square, or, as the negative advantage of a policy loss, itself. All advantages are 0.
    TEACHER = "teacher", Trait.TEACHER
    TEACHER_REWARD = "teacher_reward", Trait.TEACHER
    ROUTER = "router"  # the losses that a mixture of experts adds itself: all advantages are 0


def having(trait: Trait) -> tuple[Objective, ...]:
    """The objectives with a trait, or with one of several."""
    return tuple(one for one in Objective if trait & one.traits)


POLICY_LOSSES = having(Trait.POLICY_LOSS)
CORRECTIONS = having(Trait.CORRECTION)
OF_ROLLOUT_RATIOS = having(Trait.CORRECTION | Trait.ROLLOUT_RATIO)
OF_THE_ROLLOUT_POLICY = having(Trait.ROLLOUT_POLICY)
OF_LOG_PROBS = having(Trait.LOG_PROB)
ONE_ADVANTAGE = having(Trait.ONE_ADVANTAGE)
OF_SEQUENCES = having(Trait.SEQUENCE)
SELECTING = having(Trait.SELECTING)
COMPARING_ADVANTAGES = having(Trait.COVARIANCE)
NORMALISED = having(Trait.BATCH_MEAN)
WITH_REJECTION = having(Trait.REJECTION)
OF_TERMS = having(Trait.TERMS)
OF_GROUPS = having(Trait.GROUP)
OF_VALUES = having(Trait.VALUES)
PENALISING = having(Trait.PENALTY)
OF_CRITIC = having(Trait.CRITIC)
OF_TEACHER = having(Trait.TEACHER)

OFF_POLICY = (Objective.OFF_POLICY, Objective.REJECTION_OFF_POLICY, *POLICY_LOSSES, *CORRECTIONS)
"""Policy losses that are trained with other ratios than 1."""

FROM_REWARDS = (*OF_GROUPS, Objective.REINFORCE_PP, *OF_VALUES)
"""Objectives whose advantages the framework computes, by an estimator of this name."""

# Coefficients of auxiliary losses: powers of two, so that nothing is rounded.
ENTROPY_COEFFICIENT = 0.5
KL_COEFFICIENT = 0.25
VALUE_COEFFICIENT = 0.5  # of the squared error of a value head's values
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
