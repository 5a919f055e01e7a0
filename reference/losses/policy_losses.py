"""Derivatives of policy losses with respect to a token's log-probability, in float64.

The loss of a token depends on its advantage A and on the ratio r = exp(log p - log p_old) of the
new to the old policy. With clipping bounds ε and sg for stop-gradient,

    ppo        -min(r·A, clip(r, 1-ε_low, 1+ε_high)·A)            arXiv:1707.06347
    dual_clip  ppo, for A < 0 at most -c·A                        arXiv:1912.09729
    gspo       ppo with s = exp(mean of log r over the sequence)  arXiv:2507.18071
    cispo      -sg(clip(r, 1-ε_low, 1+ε_high))·A·log p            arXiv:2506.13585
    sapo       -A·sigmoid(τ·(r-1))·4/τ, τ by the sign of A        arXiv:2511.20347
    clip_cov   ppo, and 0 for some tokens of large covariance     arXiv:2505.22617
    kl_cov     -r·A + β·|log r| for tokens of large covariance    arXiv:2505.22617
    geo_mean   -A·exp(mean of min(log r·±, clipped log r·±)·±)    arXiv:2507.20673
    gpg        -A·log p                                           arXiv:2504.02546
    dro        -A·log p + β/2·(log r)²                            arXiv:2405.19107
    dppo       -r·A, and 0 where p has moved too far with A       arXiv:2602.04879
    rollout_is -r·A, and 0 unless r is in (1-ε_low, 1+ε_high)
    importance_sampling   -r·A

`reference.losses.corrections` has losses that are corrected, or that compare the tokens of a batch.

Each function returns the derivative of the loss that it is named after, 0 for clipped tokens. The
derivative of a sequence's ratio s with respect to the log-probability of each of its M_i tokens is
s / M_i. All M_i token losses contain s, so a token's derivative is -A·s in total. In geo_mean the
mean is over the sequence, ± is the sign of A, and log-ratios are clipped to [-ε_low, ε_high].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference.arrays import Integers, Mask, Values
    from reference.losses.constants import LossConstants

    Derivative = Callable[["PolicyTokens", LossConstants], Values]


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyTokens:
    """The inputs of policy losses, for every response token: [tokens].

    ``log_probs`` are those of the new policy, ``log_ratios`` those of the new to the old policy,
    ``rollout_log_ratios`` those of the old to the rollout policy. ``sequence`` is the index of the
    token's sequence, whose active tokens (by ``mask``) share a ratio; ``batch`` is the index of the
    batch whose active tokens a loss averages, or from which it selects tokens.
    """

    advantages: Values
    log_probs: Values
    log_ratios: Values
    rollout_log_ratios: Values
    mask: Mask
    sequence: Integers
    batch: Integers

    @property
    def ratios(self) -> Values:
        """r of each token."""
        return np.exp(self.log_ratios)

    def summed(self, values: Values) -> Values:
        """The sum over the active tokens of each token's sequence."""
        return self._summed(values, self.sequence)

    def averaged(self, values: Values) -> Values:
        """The mean over the active tokens of each token's sequence, 0 if there are none."""
        return self._averaged(values, self.sequence)

    def averaged_over_batch(self, values: Values) -> Values:
        """The mean over the active tokens of each token's batch, 0 if there are none."""
        return self._averaged(values, self.batch)

    def _averaged(self, values: Values, part: Integers) -> Values:
        return self._summed(values, part) / np.maximum(self._summed(np.ones(len(values)), part), 1)

    def _summed(self, values: Values, part: Integers) -> Values:
        active: Values = np.where(self.mask, values, 0.0)
        return np.bincount(part, weights=active).astype(np.float64)[part]


def clipped(ratios: Values, tokens: PolicyTokens, constants: LossConstants) -> Mask:
    """Whether PPO's loss uses the clipped ratio."""
    too_large = (ratios > 1 + constants.clip_high) & (tokens.advantages > 0)
    too_small = (ratios < 1 - constants.clip_low) & (tokens.advantages < 0)
    return np.asarray(too_large | too_small)


def truncated(ratios: Values, constants: LossConstants) -> Values:
    """The ratio clipped to its bounds, the factor in CISPO's loss."""
    return np.clip(ratios, 1 - constants.clip_low, 1 + constants.clip_high)


def ppo(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, 0 if clipped."""
    return _clipped_objective(tokens.ratios, tokens, constants)


def dual_clip(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """As ppo, and 0 where A < 0 and r > c."""
    beyond = (tokens.advantages < 0) & (tokens.ratios > constants.dual_clip)
    return np.where(beyond, 0.0, ppo(tokens, constants))


def gspo(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·s, 0 if clipped."""
    return _clipped_objective(np.exp(tokens.averaged(tokens.log_ratios)), tokens, constants)


def cispo(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A times the clipped ratio."""
    return -tokens.advantages * truncated(tokens.ratios, constants)


def sapo(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r·4·σ·(1-σ), for σ the sigmoid of τ·(r-1)."""
    gate = 1 / (1 + np.exp(-gate_inputs(tokens, constants)))
    return -tokens.advantages * tokens.ratios * 4 * gate * (1 - gate)


def gate_inputs(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """τ·(r-1) of each token, with the temperature of its advantage's sign."""
    positive = tokens.advantages > 0
    temperatures = constants.positive_temperature, constants.negative_temperature
    return np.where(positive, *temperatures) * (tokens.ratios - 1)


def kl_cov(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r + β·sign(log r): kl-cov's derivative where it penalises every token."""
    penalty = constants.kl_penalty * np.sign(tokens.log_ratios)
    return -tokens.advantages * tokens.ratios + penalty


def geo_mean(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A times the geometric mean of the sequence's clipped ratios, 0 for clipped tokens."""
    bounded = np.where(
        tokens.advantages > 0,
        np.minimum(tokens.log_ratios, constants.clip_high),
        np.maximum(tokens.log_ratios, -constants.clip_low),
    )
    of_sequence = -tokens.advantages * np.exp(tokens.averaged(bounded))
    return np.where(bounded == tokens.log_ratios, of_sequence, 0.0)


def gpg(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A."""
    return -tokens.advantages


def dro(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A + β·log r."""
    return -tokens.advantages + constants.kl_penalty * tokens.log_ratios


def dppo_tv(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, 0 where the token's probability has moved with A by more than a bound."""
    bounds = constants.variation_low, constants.variation_high
    return trusted(total_variation(tokens), bounds, tokens)


def dppo_kl(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, 0 where the probability has moved with A and its binary divergence is too large."""
    bounds = constants.divergence_low, constants.divergence_high
    return trusted(binary_divergence(tokens), bounds, tokens)


def total_variation(tokens: PolicyTokens) -> Values:
    """The change of each token's probability."""
    moved: Values = np.abs(np.exp(tokens.log_probs) - np.exp(tokens.log_probs - tokens.log_ratios))
    return moved


def binary_divergence(tokens: PolicyTokens) -> Values:
    """KL(old, new) of two outcomes: the token, and any other."""
    new, old = np.exp(tokens.log_probs), np.exp(tokens.log_probs - tokens.log_ratios)
    divergence: Values = old * np.log(old / new) + (1 - old) * np.log((1 - old) / (1 - new))
    return divergence


def trusted(moved: Values, bounds: tuple[float, float], tokens: PolicyTokens) -> Values:
    """-A·r, 0 if a move with A exceeds the first bound (for a fall) or the second (for a rise)."""
    low, high = bounds
    fallen = (tokens.advantages < 0) & (tokens.log_ratios < 0) & (moved > low)
    risen = (tokens.advantages > 0) & (tokens.log_ratios > 0) & (moved > high)
    return np.where(fallen | risen, 0.0, -tokens.advantages * tokens.ratios)


def importance_sampling(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, without any bound."""
    return -tokens.advantages * tokens.ratios


def rollout_is(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, 0 if r is not between the clipping bounds."""
    low, high = 1 - constants.clip_low, 1 + constants.clip_high
    is_between = (low < tokens.ratios) & (tokens.ratios < high)
    return np.where(is_between, importance_sampling(tokens, constants), 0.0)


def _clipped_objective(ratios: Values, tokens: PolicyTokens, constants: LossConstants) -> Values:
    return np.where(clipped(ratios, tokens, constants), 0.0, -tokens.advantages * ratios)
