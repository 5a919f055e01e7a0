"""The constants of policy losses and advantages, separate from the formulas, which need numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """The constants of all policy losses (`reference.losses.policy_losses`).

    Ratios are clipped to [1 - ``clip_low``, 1 + ``clip_high``]. For negative advantages, dual clip
    bounds the ratio by ``dual_clip`` (c). SAPO has a temperature (τ) for each sign of the
    advantage. ``kl_penalty`` (β) is kl-cov's and DRO's coefficient. ``truncation`` (C) bounds
    importance ratios. Sequences are kept if the geometric mean or the product of their ratios is
    between ``kept_low`` and ``kept_high``; ``kept_low`` is also the lower bound where
    ``truncation`` is the upper bound. Outliers are ratios outside ``outlier_low`` to
    ``outlier_high``. ``value_clip`` bounds how far a critic's value moves
    (`reference.losses.value_losses`).

    clip-cov clips covariances between ``covariance_low`` and ``covariance_high``, kl-cov penalises
    the ``covariance_fraction`` of tokens with the largest covariances. DPPO bounds a fall of a
    token's probability by ``variation_low`` and a rise by ``variation_high``, or their divergences
    by ``divergence_low`` and ``divergence_high``. OPSM bounds the divergence of a sequence by
    ``sequence_divergence``, and M2PO the mean of squared log-ratios by ``second_moment``.
    """

    clip_low: float
    clip_high: float
    dual_clip: float
    positive_temperature: float
    negative_temperature: float
    kl_penalty: float
    truncation: float
    kept_low: float
    kept_high: float
    value_clip: float
    outlier_low: float
    outlier_high: float
    covariance_low: float
    covariance_high: float
    covariance_fraction: float
    variation_low: float
    variation_high: float
    divergence_low: float
    divergence_high: float
    sequence_divergence: float
    second_moment: float


@dataclass(frozen=True, kw_only=True)
class AdvantageConstants:
    """The constants of advantages (`reference.advantages`): γ, λ, β, C and φ."""

    discount: float
    trace: float
    penalty: float
    buffer: float
    overlong: float
