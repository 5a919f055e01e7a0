"""What a step is trained on: the terms of its loss, and what is logged of them.

A framework's loss is a sum of terms, each a reduction of something that every token has: its
policy-gradient loss, its entropy, its divergence from a reference policy. A job has one objective,
which says what terms there are. Every term is linear in what it reduces, so that weights say
everything about it, as they do about the policy loss.
"""

from __future__ import annotations

from enum import StrEnum


class Objective(StrEnum):
    """What is trained."""

    POLICY = "policy"
    """The clipped policy-gradient loss (PPO, arXiv:1707.06347) where the ratio is exactly 1."""

    OFF_POLICY = "off_policy"
    """The same where the ratio is not 1: some tokens are clipped. Only what is logged is looked
    at, as clipped tokens have no gradient."""

    REJECTION = "rejection"
    """The policy loss with a correction by importance sampling that takes tokens out of the mask
    and leaves the others' losses as they are."""

    ENTROPY = "entropy"
    """The entropy bonus alone: all advantages are 0."""

    KL = "kl"
    """The divergence from a reference policy alone: all advantages are 0. The estimator is k1,
    whose derivative by a log-probability is 1."""

    COMBINED = "combined"
    """The policy loss, the entropy bonus and the divergence."""

    DUAL_CLIP = "dual_clip"
    """arXiv:1912.09729."""

    GSPO = "gspo"
    """Ratios of whole sequences (arXiv:2507.18071)."""

    CISPO = "cispo"
    """Clipped importance weights on the log-probability (arXiv:2506.13585)."""

    SAPO = "sapo"
    """Soft gates in the place of clipping (arXiv:2511.20347)."""

    CLIP_COV = "clip_cov"
    """Tokens of large covariance are clipped (arXiv:2505.22617)."""

    KL_COV = "kl_cov"
    """Tokens of large covariance are penalised (arXiv:2505.22617)."""

    SFT = "sft"
    """Negative log-likelihood."""

    VALUE = "value"
    """Clipped squared error of a critic."""


POLICY_LOSSES = (
    Objective.DUAL_CLIP,
    Objective.GSPO,
    Objective.CISPO,
    Objective.SAPO,
    Objective.CLIP_COV,
    Objective.KL_COV,
)
"""Policy losses beyond PPO's clipping; where ratios are 1, all have its gradient."""

ENTROPY_COEFFICIENT = 0.5
KL_COEFFICIENT = 0.25
"""Of the terms beside the policy loss: powers of two, which round nothing."""

CLIP = 0.2
"""Ratios are clipped to 1 ± this."""


class Metric(StrEnum):
    """What a framework logs of a step: a reduction of something that every token has."""

    POLICY_LOSS = "policy_loss"

    LOSS = "loss"
    """All terms with their coefficients."""

    CLIP_FRACTION = "clip_fraction"
    """1 for a token whose ratio is clipped, else 0."""

    POLICY_KL = "policy_kl"
    """Old log-probability minus new."""

    ENTROPY = "entropy"

    KL = "kl"
    """Log-probability minus the reference policy's."""

    REJECTED = "rejected"
    """1 for a token that rejection takes out of the mask, else 0."""
