"""The constants of policy losses and advantages, apart from formulas, which need numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """The constants of all policy losses (`reference.policy_losses`).

    Ratios are clipped to [1 - ``clip_low``, 1 + ``clip_high``], dual clip bounds the ratio of
    negative advantages by ``dual_clip`` (c), SAPO has a temperature (τ) for advantages of each
    sign, ``kl_penalty`` (β) is that of kl-cov and DRO, ``truncation`` (C) bounds importance
    sampling, and ``kept_low`` and ``kept_high`` the mean ratios of sequences that are kept.
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


@dataclass(frozen=True, kw_only=True)
class AdvantageConstants:
    """The constants of advantages (`reference.advantages`): γ, λ and β."""

    discount: float
    trace: float
    penalty: float
