"""Objectives of training, and the metrics that are logged.

A framework's loss is a sum of terms, each a reduction of a per-token quantity: the policy-gradient
loss, the entropy, the divergence from a reference policy. A job has one objective, which determines
the terms. Every term is linear in its quantity and is thus described by token weights.
"""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import Self

from reference.losses.constants import AdvantageConstants, LossConstants


class Trait(Flag):
    """A trait by which checks, adapters and the reference distinguish objectives."""

    NONE = 0
    POLICY_LOSS = auto()  # a policy loss other than PPO's
    CORRECTION = auto()  # corrects PPO's loss for a rollout policy that differs from the old policy
    ROLLOUT_RATIO = auto()  # depends on the ratio of old to rollout policy, as corrections do
    ROLLOUT_POLICY = auto()  # uses the rollout policy as the old policy
    # Depends on the new log-probability itself, so jobs have log-probabilities other than 0. A loss
    # with a ratio to the rollout policy depends on the log-probability only if the ratio wrongly
    # has a gradient.
    LOG_PROB = auto()
    ONE_ADVANTAGE = auto()  # all tokens of a sample have the same advantage
    SEQUENCE = auto()  # depends on whole sequences
    SELECTING = auto()  # selects tokens by comparing the tokens of a batch
    COVARIANCE = auto()  # selects tokens by covariances of advantages and log-probabilities
    BATCH_MEAN = auto()  # divides weights by their mean over a batch
    REJECTION = auto()  # has rejection sampling
    TERMS = auto()  # has an entropy bonus and a divergence besides the policy loss
    GROUP = auto()  # an estimator of advantages that compares the samples of a prompt
    VALUES = auto()  # an estimator of advantages with a critic's values
    PENALTY = auto()  # an estimator with a penalty on the divergence from the reference policy
    CRITIC = auto()  # a critic's loss
    TEACHER = auto()  # a loss computed from the log-probabilities of a teacher


class Objective(StrEnum):
    """The loss that a job trains."""

    traits: Trait

    def __new__(cls, value: str, traits: Trait = Trait.NONE) -> Self:
        """Make an objective from its name in ids of findings and its traits."""
        made = str.__new__(cls, value)
        made._value_, made.traits = value, traits
        return made

    # The clipped policy-gradient loss (PPO, arXiv:1707.06347) where the ratio is exactly 1.
    POLICY = "policy"
    OFF_POLICY = "off_policy"  # PPO's loss with other ratios: some tokens are clipped
    # PPO's loss with truncated importance sampling of tokens.
    TIS_TOKEN = "tis_token", Trait.CORRECTION
    # PPO's loss with truncated importance sampling of sequences.
    TIS_SEQUENCE = "tis_sequence", Trait.CORRECTION | Trait.SEQUENCE
    # The policy loss with rejection sampling, which removes tokens from the mask and leaves the
    # losses of other tokens unchanged.
    REJECTION = "rejection", Trait.REJECTION
    # The policy loss with rejection sampling and ratios of new to old policy other than 1.
    REJECTION_OFF_POLICY = "rejection_off_policy", Trait.REJECTION
    # The policy loss with rejection sampling, an entropy bonus and a divergence.
    REJECTION_COMBINED = "rejection_combined", Trait.REJECTION | Trait.TERMS
    ENTROPY = "entropy"  # the entropy bonus alone: all advantages are 0
    # The divergence from a reference policy alone: all advantages are 0. The estimator is k1, whose
    # derivative by a log-probability is 1.
    KL = "kl"
    # The sum of policy loss and entropy bonus.
    WITH_ENTROPY = "with_entropy"
    # The sum of the losses of a policy and of a value head that shares its trunk.
    WITH_VALUE = "with_value"
    # The divergence alone, with a coefficient that adapts to the divergence from step to step.
    ADAPTIVE_KL = "adaptive_kl"
    COMBINED = "combined", Trait.TERMS  # the sum of policy loss, entropy bonus and divergence
    DUAL_CLIP = "dual_clip", Trait.POLICY_LOSS  # the dual-clip policy loss (arXiv:1912.09729)
    # Ratios of whole sequences (arXiv:2507.18071).
    GSPO = "gspo", Trait.POLICY_LOSS | Trait.ONE_ADVANTAGE | Trait.SEQUENCE
    # Clipped importance weights on the log-probability (arXiv:2506.13585).
    CISPO = "cispo", Trait.POLICY_LOSS
    SAPO = "sapo", Trait.POLICY_LOSS  # soft gates instead of clipping (arXiv:2511.20347)
    # Tokens with large covariance are clipped (arXiv:2505.22617).
    CLIP_COV = "clip_cov", Trait.POLICY_LOSS | Trait.COVARIANCE
    # Tokens with large covariance are penalised (arXiv:2505.22617).
    KL_COV = "kl_cov", Trait.POLICY_LOSS
    # Geometric means of clipped ratios (GMPO, arXiv:2507.20673).
    GEO_MEAN = "geo_mean", Trait.POLICY_LOSS | Trait.ONE_ADVANTAGE | Trait.SEQUENCE
    # Advantages times log-probabilities, without ratios (arXiv:2504.02546).
    GPG = "gpg", Trait.POLICY_LOSS
    # Advantages times log-probabilities, with a quadratic penalty on the log-ratio
    # (arXiv:2405.19107).
    DRO = "dro", Trait.POLICY_LOSS
    # Sequences are dropped by their mean ratio to the rollout policy; tokens of the other sequences
    # are corrected.
    SEQUENCE_MASKED = "sequence_masked", Trait.POLICY_LOSS | Trait.ROLLOUT_RATIO | Trait.SEQUENCE
    # Covariances select tokens: clip-cov clips tokens within bounds, kl-cov penalises the largest.
    COVARIANCE_CLIPPED = (
        "covariance_clipped",
        Trait.POLICY_LOSS | Trait.LOG_PROB | Trait.SELECTING | Trait.COVARIANCE,
    )
    COVARIANCE_PENALISED = (
        "covariance_penalised",
        Trait.POLICY_LOSS | Trait.LOG_PROB | Trait.SELECTING | Trait.COVARIANCE,
    )
    # Tokens whose probability has moved too far are masked (arXiv:2602.04879).
    DPPO_TV = "dppo_tv", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    # Tokens are masked as in `DPPO_TV`, by KL divergence instead of total variation.
    DPPO_KL = "dppo_kl", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    IMPORTANCE_SAMPLING = "importance_sampling", Trait.POLICY_LOSS  # ratios without clipping
    # Ratios to the rollout policy, 0 if they are out of bounds.
    ROLLOUT_IS = "rollout_is", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB
    # Ratios to the rollout policy, divided by their mean over the batch.
    REINFORCE_NORMALISED = (
        "reinforce_normalised",
        Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.LOG_PROB | Trait.BATCH_MEAN,
    )
    # Truncated ratios, divided by their mean over the batch.
    TIS_NORMALISED = "tis_normalised", Trait.CORRECTION | Trait.BATCH_MEAN
    TIS_BOUNDED = "tis_bounded", Trait.CORRECTION  # ratios, clamped between two bounds
    ICEPOP = "icepop", Trait.CORRECTION  # ratios, 0 if they are out of bounds (arXiv:2510.18855)
    # Products of ratios over sequences, 0 if they are out of bounds.
    SEQUENCE_ICEPOP = "sequence_icepop", Trait.CORRECTION | Trait.SEQUENCE
    # Sequences are dropped if the product of their ratios is out of bounds.
    PRODUCT_MASKED = "product_masked", Trait.CORRECTION | Trait.SEQUENCE
    # Sequences are dropped if one of their tokens is an outlier.
    OUTLIER_MASKED = "outlier_masked", Trait.CORRECTION | Trait.SEQUENCE
    # Off-policy sequences with a negative advantage are dropped (arXiv:2512.02556).
    OPSM = "opsm", Trait.POLICY_LOSS | Trait.ROLLOUT_POLICY | Trait.SEQUENCE
    # Tokens with a large second moment are dropped (arXiv:2510.01161).
    M2PO = "m2po", Trait.CORRECTION | Trait.SELECTING
    # The policy loss with a ratio of 1 and advantages that the framework computes from rewards.
    GROUP_NORMALISED = "group_normalised", Trait.GROUP
    GROUP_CENTRED = "group_centred", Trait.GROUP
    # Centred rewards, after subtracting a penalty on long responses (DAPO).
    OVERLONG = "overlong", Trait.GROUP
    # Centred rewards, with masking of truncated samples; no sample is truncated.
    COMPLETE = "complete", Trait.GROUP
    WEIGHTED = "weighted", Trait.GROUP  # centred weighted sums of several reward functions
    MEAN_NORMALISED = "mean_normalised", Trait.GROUP
    LEAVE_ONE_OUT = "leave_one_out", Trait.GROUP
    OTHERS_NORMALISED = "others_normalised", Trait.GROUP
    GROUP_WHITENED = "group_whitened", Trait.GROUP
    REINFORCE_PP = "reinforce_pp", Trait.PENALTY
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline", Trait.GROUP | Trait.PENALTY
    # On-policy distillation: the divergence from a teacher is subtracted from centred rewards.
    DISTILLED = "distilled", Trait.GROUP
    GAE = "gae", Trait.VALUES
    # GAE, with rewards penalised by the divergence from the reference policy.
    PENALISED_GAE = "penalised_gae", Trait.VALUES | Trait.PENALTY
    SFT = "sft"  # negative log-likelihood
    # Squared error of a critic whose values are within the clipping bound.
    VALUE = "value", Trait.CRITIC
    # squared error of a critic, with old values beyond the clipping bound
    VALUE_CLIPPED = "value_clipped", Trait.CRITIC
    # The divergence from a teacher is the only term. Its derivative is the log-ratio to the
    # teacher: the loss is half of the squared log-ratio, or a policy loss whose advantage is the
    # negative log-ratio. The job's own advantages are 0.
    TEACHER = "teacher", Trait.TEACHER
    TEACHER_REWARD = "teacher_reward", Trait.TEACHER
    ROUTER = "router"  # the auxiliary losses of a mixture-of-experts router: all advantages are 0


def having(trait: Trait) -> tuple[Objective, ...]:
    """The objectives with at least one of the given traits."""
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
"""Policy losses that are trained with ratios other than 1."""

FROM_REWARDS = (*OF_GROUPS, Objective.REINFORCE_PP, *OF_VALUES)
"""Objectives whose advantages the framework computes, by the estimator that the objective is named
after."""

# Coefficients of auxiliary losses: powers of two, so that products are exact.
ENTROPY_COEFFICIENT = 0.5
KL_COEFFICIENT = 0.25
VALUE_COEFFICIENT = 0.5  # coefficient of a value head's squared error
ROUTER_COEFFICIENT = 0.5  # coefficient of a router's load-balancing loss
Z_COEFFICIENT = 0.25  # coefficient of a router's z-loss

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
"""Constants of all policy losses, as adapters configure them. Lower and upper bounds differ."""

ADVANTAGE_CONSTANTS = AdvantageConstants(
    discount=0.75, trace=0.5, penalty=KL_COEFFICIENT, buffer=8, overlong=0.5
)
"""Constants of all estimators of advantages, as adapters configure them."""


class Metric(StrEnum):
    """A logged number: a reduction of a per-token quantity."""

    POLICY_LOSS = "policy_loss"
    LOSS = "loss"  # the sum of all terms with their coefficients
    CLIP_FRACTION = "clip_fraction"  # 1 for a token whose ratio is clipped, else 0
    POLICY_KL = "policy_kl"  # old log-probability minus new
    RATIO = "ratio"  # new probability over old
    ENTROPY = "entropy"
    KL = "kl"  # log-probability minus the reference policy's
    VALUE_LOSS = "value_loss"  # squared error of a critic's value
    KL_COEFFICIENT = "kl_coefficient"  # the divergence's coefficient for the next step
    REJECTED = "rejected"  # 1 for a token that rejection sampling removes from the mask, else 0
    # Metrics of a batch of rollouts, before training.
    REWARD = "reward"  # reward of a sample
    RESPONSE_LENGTH = "response_length"  # length of a sample's response in tokens
    ADVANTAGE = "advantage"
    VALUE = "value"  # a critic's value
    REFERENCE_LOG_PROB = "reference_log_prob"  # the reference policy's log-probability
    DIVERGENCE = "divergence"  # the old policy's log-probability minus the reference policy's


OF_SAMPLES = (Metric.REWARD, Metric.RESPONSE_LENGTH)
"""Metrics of a batch of rollouts that have one number per sample instead of per token."""

OF_ROLLOUTS = (
    *OF_SAMPLES,
    Metric.ADVANTAGE,
    Metric.VALUE,
    Metric.REFERENCE_LOG_PROB,
    Metric.DIVERGENCE,
)
"""Metrics that are logged once per batch of rollouts instead of once per step."""
