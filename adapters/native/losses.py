"""The per-token losses that `native` trains.

Formulas and sources are those of `reference.losses.policy_losses`. Here they use torch's autograd,
on a micro-batch's log-probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adapters.contract.objective import CONSTANTS, Objective

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.native.packing import Packed

    SequenceSum = Callable[[Tensor, Packed], Tensor]
    LossFunction = Callable[[Tensor, Packed, SequenceSum], Tensor]
    """A function that returns token losses from log-probabilities. Its last argument sums values
    over the active tokens of each token's sequence, on all context-parallel ranks."""


LARGEST_LOG_RATIO = 20.0
"""The bound on log-ratios: a larger one could make a ratio infinite, with a NaN gradient if it is
clipped."""


def clipped_losses(log_ratios: Tensor, packed: Packed) -> Tensor:
    """The larger one of the unclipped and the clipped loss of each token."""
    ratio = torch.exp(log_ratios.clamp(max=LARGEST_LOG_RATIO))
    return torch.maximum(-packed.advantages * ratio, -packed.advantages * clipped(ratio))


def clipped(ratio: Tensor) -> Tensor:
    """Ratios, clamped to the clipping bounds."""
    return ratio.clamp(1 - CONSTANTS.clip_low, 1 + CONSTANTS.clip_high)


def ppo(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Clipped policy-gradient losses."""
    return clipped_losses(log_probs - packed.old_log_probs, packed)


def dual_clip(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses, bounded for negative advantages."""
    losses = ppo(log_probs, packed, sequence_sum)
    bounded = torch.minimum(losses, -packed.advantages * CONSTANTS.dual_clip)
    return torch.where(packed.advantages < 0, bounded, losses)


def gspo(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses with the sequence's ratio; the gradient reaches only the token itself."""
    log_ratios = (log_probs - packed.old_log_probs).detach()
    tokens = sequence_sum(torch.ones_like(log_ratios), packed).clamp(min=1)
    of_sequences = sequence_sum(log_ratios, packed) / tokens
    return clipped_losses(log_probs - log_probs.detach() + of_sequences, packed)


def cispo(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses of log-probabilities times a clipped ratio without gradient."""
    ratio = torch.exp(log_probs.detach() - packed.old_log_probs)
    return -packed.advantages * clipped(ratio) * log_probs


def sapo(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses with soft gates instead of clipping."""
    temperature = torch.where(
        packed.advantages > 0, CONSTANTS.positive_temperature, CONSTANTS.negative_temperature
    )
    ratio = torch.exp(log_probs - packed.old_log_probs)
    return -packed.advantages * torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature


def geo_mean(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses with geometric means of clipped ratios; each gradient reaches only its own token."""
    log_ratios = log_probs - packed.old_log_probs
    bounded = torch.where(
        packed.advantages > 0,
        log_ratios.clamp(max=CONSTANTS.clip_high),
        log_ratios.clamp(min=-CONSTANTS.clip_low),
    )
    tokens = sequence_sum(torch.ones_like(bounded), packed).clamp(min=1)
    of_sequences = sequence_sum(bounded.detach(), packed) / tokens
    return -packed.advantages * torch.exp(bounded - bounded.detach() + of_sequences)


def gpg(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses of log-probabilities times advantages."""
    return linear(log_probs, packed)


def dro(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses of log-probabilities times advantages, with a penalty on squared log-ratios."""
    penalty = CONSTANTS.kl_penalty / 2 * (log_probs - packed.old_log_probs) ** 2
    return linear(log_probs, packed) + penalty


def tis_token(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times the truncated ratio of old policy to rollout policy."""
    log_ratios = packed.old_log_probs - packed.rollout_log_probs
    return ppo(log_probs, packed, sequence_sum) * truncated(log_ratios)


def tis_sequence(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times the truncated ratio of the whole sequence."""
    log_ratios = sequence_sum(packed.old_log_probs - packed.rollout_log_probs, packed)
    return ppo(log_probs, packed, sequence_sum) * truncated(log_ratios)


def sequence_masked(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times token ratios, 0 for sequences whose mean ratio is out of bounds."""
    log_ratios = packed.old_log_probs - packed.rollout_log_probs
    tokens = sequence_sum(torch.ones_like(log_ratios), packed).clamp(min=1)
    is_kept = kept(sequence_sum(log_ratios, packed) / tokens)
    return ppo(log_probs, packed, sequence_sum) * torch.exp(log_ratios) * is_kept


def corrected(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times a correction that depends on the whole step."""
    return ppo(log_probs, packed, sequence_sum) * packed.correction


def covariance_penalised(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses without clipping, with a penalty on the log-ratios of selected tokens."""
    log_ratios = log_probs - packed.old_log_probs
    penalty = CONSTANTS.kl_penalty * log_ratios.abs()
    return unbounded(log_ratios, packed) + penalty * packed.correction


def unbounded(log_ratios: Tensor, packed: Packed) -> Tensor:
    """Losses with a ratio that is not clipped."""
    return -packed.advantages * torch.exp(log_ratios)


def importance_sampling(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses with ratios that are not clipped."""
    return unbounded(log_probs - packed.old_log_probs, packed)


def dppo_tv(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses, 0 for tokens whose probability has moved too far in their advantage's direction."""
    new, old = torch.exp(log_probs.detach()), torch.exp(packed.old_log_probs)
    bounds = CONSTANTS.variation_low, CONSTANTS.variation_high
    return trusted(log_probs, (new - old).abs(), *bounds, packed)


def dppo_kl(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses as in `dppo_tv`, masked by the KL divergence of two outcomes: the token or another."""
    new, old = torch.exp(log_probs.detach()), torch.exp(packed.old_log_probs)
    divergence = old * torch.log(old / new) + (1 - old) * torch.log((1 - old) / (1 - new))
    bounds = CONSTANTS.divergence_low, CONSTANTS.divergence_high
    return trusted(log_probs, divergence, *bounds, packed)


def trusted(log_probs: Tensor, moved: Tensor, low: float, high: float, packed: Packed) -> Tensor:
    """Losses without clipping, 0 for tokens whose probability has moved too far.

    ``low`` bounds moves down, ``high`` moves up. Only a move in the advantage's direction counts:
    down if the advantage is negative, up if it is positive.
    """
    log_ratios = log_probs - packed.old_log_probs
    fallen = (packed.advantages < 0) & (log_ratios < 0) & (moved > low)
    risen = (packed.advantages > 0) & (log_ratios > 0) & (moved > high)
    return unbounded(log_ratios, packed) * ~(fallen | risen)


def rollout_is(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses of log-probabilities times the ratio to the rollout policy, 0 out of bounds."""
    ratio = torch.exp(log_probs.detach() - packed.rollout_log_probs)
    within = (ratio > 1 - CONSTANTS.clip_low) & (ratio < 1 + CONSTANTS.clip_high)
    return linear(log_probs, packed) * ratio * within


def reinforce_normalised(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Losses of log-probabilities times a correction that depends on the whole step."""
    return linear(log_probs, packed) * packed.correction


def tis_bounded(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times the ratio of old policy to rollout policy, clamped between two bounds."""
    ratios = truncated(packed.old_log_probs - packed.rollout_log_probs)
    return ppo(log_probs, packed, sequence_sum) * ratios.clamp(min=CONSTANTS.kept_low)


def icepop(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times the ratio of old to rollout policy, or 0 if it is out of bounds."""
    ratios = torch.exp(packed.old_log_probs - packed.rollout_log_probs)
    return ppo(log_probs, packed, sequence_sum) * torch.where(between(ratios), ratios, 0)


def sequence_icepop(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses times the product of a sequence's ratios, or 0 if it is out of bounds."""
    log_ratios = sequence_sum(packed.old_log_probs - packed.rollout_log_probs, packed)
    products = torch.exp(log_ratios)
    return ppo(log_probs, packed, sequence_sum) * torch.where(between(products), products, 0)


def product_masked(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses, 0 for sequences whose product of ratios is out of bounds."""
    log_ratios = sequence_sum(packed.old_log_probs - packed.rollout_log_probs, packed)
    return ppo(log_probs, packed, sequence_sum) * kept(log_ratios)


def between(ratios: Tensor) -> Tensor:
    """Whether ratios are between the lower and upper bounds of kept ratios."""
    return (ratios >= CONSTANTS.kept_low) & (ratios <= CONSTANTS.truncation)


def outlier_masked(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses, 0 for sequences with an outlier."""
    ratios = torch.exp(packed.old_log_probs - packed.rollout_log_probs)
    outliers = (ratios < CONSTANTS.outlier_low) | (ratios > CONSTANTS.outlier_high)
    return ppo(log_probs, packed, sequence_sum) * (sequence_sum(outliers.float(), packed) == 0)


def opsm(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """PPO's losses, 0 for tokens of negative advantage in sequences that became too unlikely."""
    log_ratios = packed.old_log_probs - log_probs.detach()
    tokens = sequence_sum(torch.ones_like(log_ratios), packed).clamp(min=1)
    is_far = sequence_sum(log_ratios, packed) / tokens > CONSTANTS.sequence_divergence
    return ppo(log_probs, packed, sequence_sum) * ~(is_far & (packed.advantages < 0))


def kept(log_ratios: Tensor) -> Tensor:
    """Whether ratios are within the bounds of kept ratios, given log-ratios."""
    ratios = torch.exp(log_ratios)
    return (ratios >= CONSTANTS.kept_low) & (ratios <= CONSTANTS.kept_high)


def truncated(log_ratios: Tensor) -> Tensor:
    """Ratios, truncated at the upper bound of truncated importance sampling."""
    return torch.exp(log_ratios).clamp(max=CONSTANTS.truncation)


def teacher(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Half of the squared log-ratios to a teacher."""
    return (log_probs - packed.teacher_log_probs) ** 2 / 2


def teacher_reward(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Ratios of new to old policy times detached log-ratios to a teacher."""
    ratios = torch.exp(log_probs - packed.old_log_probs)
    return ratios * (log_probs - packed.teacher_log_probs).detach()


def likelihood(log_probs: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Negative log-likelihoods."""
    return -log_probs


def value(values: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """Squared errors of a critic's values; the values are the probe's entries."""
    return (values - packed.returns) ** 2


def value_clipped(values: Tensor, packed: Packed, sequence_sum: SequenceSum) -> Tensor:
    """The larger squared error: of the values, or of values clipped around old values."""
    old, bound = packed.old_values, CONSTANTS.value_clip
    bounded = old + (values - old).clamp(-bound, bound)
    errors = value(values, packed, sequence_sum)
    return torch.maximum(errors, value(bounded, packed, sequence_sum))


def linear(log_probs: Tensor, packed: Packed) -> Tensor:
    """Losses that are linear in the probe, for depth `reducer`."""
    return -packed.advantages * log_probs


POLICY_LOSSES: dict[Objective, LossFunction] = {
    Objective.DUAL_CLIP: dual_clip,
    Objective.GSPO: gspo,
    Objective.CISPO: cispo,
    Objective.SAPO: sapo,
    Objective.CLIP_COV: ppo,  # with equal log-probabilities, all covariances are 0
    Objective.KL_COV: covariance_penalised,  # without a correction, all tokens are penalised
    Objective.GEO_MEAN: geo_mean,
    Objective.GPG: gpg,
    Objective.DRO: dro,
    Objective.TEACHER: teacher,
    Objective.TEACHER_REWARD: teacher_reward,
    Objective.TIS_TOKEN: tis_token,
    Objective.TIS_SEQUENCE: tis_sequence,
    Objective.SEQUENCE_MASKED: sequence_masked,
    Objective.COVARIANCE_CLIPPED: corrected,
    Objective.COVARIANCE_PENALISED: covariance_penalised,
    Objective.DPPO_TV: dppo_tv,
    Objective.DPPO_KL: dppo_kl,
    Objective.IMPORTANCE_SAMPLING: importance_sampling,
    Objective.ROLLOUT_IS: rollout_is,
    Objective.REINFORCE_NORMALISED: reinforce_normalised,
    Objective.TIS_NORMALISED: corrected,
    Objective.TIS_BOUNDED: tis_bounded,
    Objective.ICEPOP: icepop,
    Objective.SEQUENCE_ICEPOP: sequence_icepop,
    Objective.PRODUCT_MASKED: product_masked,
    Objective.OUTLIER_MASKED: outlier_masked,
    Objective.OPSM: opsm,
    Objective.M2PO: corrected,
}
"""The policy loss of each objective whose policy loss is not PPO's."""

OTHER_LOSSES: dict[Objective, LossFunction] = {
    Objective.SFT: likelihood,
    Objective.VALUE: value,
    Objective.VALUE_CLIPPED: value_clipped,
}
"""Losses that replace the policy loss."""
