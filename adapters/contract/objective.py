"""Objectives of training and the metrics that are logged.

A framework's loss is a sum of terms, each a reduction of a quantity of every token: its
policy-gradient loss, its entropy, its divergence from a reference policy. A job has one objective,
which determines the terms. Every term is linear in its quantity and thus described by weights.
"""

from __future__ import annotations

from enum import StrEnum


class Objective(StrEnum):
    """The loss that is trained."""

    POLICY = "policy"
    """The clipped policy-gradient loss (PPO, arXiv:1707.06347) where the ratio is exactly 1."""

    OFF_POLICY = "off_policy"
    """The clipped policy-gradient loss with other ratios: some tokens are clipped. Only metrics are
    judged, as clipped tokens have no gradient."""

    REJECTION = "rejection"
    """The policy loss with rejection sampling, which removes tokens from the mask and leaves the
    losses of the others as they are."""

    ENTROPY = "entropy"
    """The entropy bonus alone: all advantages are 0."""

    KL = "kl"
    """The divergence from a reference policy alone: all advantages are 0. The estimator is k1,
    whose derivative by a log-probability is 1."""

    COMBINED = "combined"
    """The sum of policy loss, entropy bonus and divergence."""

    DUAL_CLIP = "dual_clip"
    """The dual-clip policy loss (arXiv:1912.09729)."""

    GSPO = "gspo"
    """Ratios of whole sequences (arXiv:2507.18071)."""

    CISPO = "cispo"
    """Clipped importance weights on the log-probability (arXiv:2506.13585)."""

    SAPO = "sapo"
    """Soft gates instead of clipping (arXiv:2511.20347)."""

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
"""Policy losses other than PPO's; with ratios of 1 all have its gradient."""

ENTROPY_COEFFICIENT = 0.5
# Coefficients of auxiliary losses: powers of two, so that nothing is rounded.
KL_COEFFICIENT = 0.25
# Ratios are clipped to 1 ± this value.
CLIP = 0.2


class Metric(StrEnum):
    """A logged number: the reduction of a quantity of every token."""

    POLICY_LOSS = "policy_loss"

    LOSS = "loss"
    """The sum of all terms with their coefficients."""

    CLIP_FRACTION = "clip_fraction"
    """The quantity is 1 for a token whose ratio is clipped, else 0."""

    POLICY_KL = "policy_kl"
    """Old log-probability minus new."""

    ENTROPY = "entropy"

    KL = "kl"
    """Log-probability minus the reference policy's."""

    REJECTED = "rejected"
    """The quantity is 1 for a token that rejection sampling removes from the mask, else 0."""
