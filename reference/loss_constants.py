"""The constants of policy losses and advantages, separate from the formulas, which need numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """The constants of all policy losses (`reference.policy_losses`).

    Ratios are clipped to [1 - ``clip_low``, 1 + ``clip_high``]. For negative advantages, dual clip
    bounds the ratio by ``dual_clip`` (c). SAPO has a temperature (τ) for each sign of the
    advantage. ``kl_penalty`` (β) is kl-cov's and DRO's coefficient. ``truncation`` (C) bounds
    importance ratios. Sequences are kept if their mean ratio is between ``kept_low`` and
    ``kept_high``. ``value_clip`` bounds how far a critic's value moves (`reference.value_losses`).
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


@dataclass(frozen=True, kw_only=True)
class AdvantageConstants:
    """The constants of advantages (`reference.advantages`): γ, λ and β."""

    discount: float
    trace: float
    penalty: float
