"""Derivatives of policy losses that are corrected, or that select tokens, in float64.

A, r, ε, β and sg are defined in `reference.losses.policy_losses`; q is the ratio of the old policy
to the rollout policy. Bounds on q are b and B, its truncation is C. Corrections multiply ppo by a
factor without gradient:

    tis             min(q, C), of a token or multiplied over a sequence (Yao et al., On the
                    Rollout-Training Mismatch in Modern RL Systems, 2025)
    tis_bounded     q clipped to [b, C]
    tis_normalised  min(q, C) divided by its mean over the active tokens of a batch
    icepop          q of a token, or multiplied over a sequence; 0 outside [b, C]
                                                                  arXiv:2510.18855
    sequence_masked q, or 0 unless exp(mean of log q over the sequence) is in [b, B]
    product_masked  1, or 0 unless the product of q over the sequence is in [b, B]
    outlier_masked  1, or 0 where q of any token of the sequence is an outlier
    opsm            1, or 0 for A < 0 where the mean of -log r over the sequence is too large
                                                                  arXiv:2512.02556
    m2po            1, or 0 for the tokens of a batch with the largest (log r·q)², so that the mean
                    of the other tokens is below a bound          arXiv:2510.01161

reinforce_normalised is -sg(w)·A·log p, where w is min(r, C) divided by its mean over a batch, and r
is the ratio of the new policy to the rollout policy.

clip-cov and kl-cov (arXiv:2505.22617) choose tokens by their covariance (A - mean of A)·(log p -
mean of log p), where means are over the active tokens of a batch. covariance_clipped is ppo, but 0
for tokens whose covariance is between two bounds. covariance_penalised is -r·A, plus β·|log r| for
the tokens of a batch with the largest covariances, a fixed fraction of the batch.

Each function returns the derivative of the loss that it is named after, with respect to the token's
log-probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reference.losses.policy_losses import importance_sampling, kl_cov, ppo

if TYPE_CHECKING:
    from reference.arrays import Integers, Mask, Values
    from reference.losses.constants import LossConstants
    from reference.losses.policy_losses import PolicyTokens


def tis_token(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the token's truncated ratio."""
    return _corrected(tokens.rollout_log_ratios, tokens, constants)


def tis_sequence(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the truncated product of the sequence's ratios."""
    return _corrected(tokens.summed(tokens.rollout_log_ratios), tokens, constants)


def sequence_masked(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the ratio, 0 if the sequence's geometric mean is out of bounds."""
    corrected = ppo(tokens, constants) * np.exp(tokens.rollout_log_ratios)
    return np.where(kept(tokens.averaged(tokens.rollout_log_ratios), constants), corrected, 0.0)


def kept(log_ratios: Values, constants: LossConstants) -> Mask:
    """Whether a sequence is kept, given the mean or the sum of its log-ratios."""
    low, high = constants.kept_low, constants.kept_high
    return np.asarray((np.exp(log_ratios) >= low) & (np.exp(log_ratios) <= high))


def covariance_clipped(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative, 0 for tokens whose covariance is between the bounds."""
    return np.where(between_bounds(covariances(tokens), constants), 0.0, ppo(tokens, constants))


def between_bounds(covariance: Values, constants: LossConstants) -> Mask:
    """Whether clip-cov clips tokens of this covariance."""
    low, high = constants.covariance_low, constants.covariance_high
    return np.asarray((low < covariance) & (covariance < high))


def covariance_penalised(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A·r, plus β·sign(log r) for tokens of the largest covariance."""
    is_chosen = are_largest(covariances(tokens), tokens, constants)
    return np.where(is_chosen, kl_cov(tokens, constants), importance_sampling(tokens, constants))


def are_largest(covariance: Values, tokens: PolicyTokens, constants: LossConstants) -> Mask:
    """Whether kl-cov penalises a token: the ⌊fraction · tokens⌋ largest of a batch, at least one.

    Of equal covariances the first are chosen, which is as right as any other choice (`tied`).
    """
    is_chosen = np.zeros(len(covariance), np.bool_)
    for active in batch_places(tokens):
        descending = active[np.argsort(-covariance[active], kind="stable")]
        is_chosen[descending[: max(int(constants.covariance_fraction * len(active)), 1)]] = True
    return is_chosen


def tied(tokens: PolicyTokens, constants: LossConstants) -> Mask:
    """Whether kl-cov's choice of a token is arbitrary: tokens of its covariance are not all chosen.

    The covariances of a batch of two tokens are always equal.
    """
    covariance = covariances(tokens)
    is_chosen = are_largest(covariance, tokens, constants)
    are_tied = np.zeros(len(covariance), np.bool_)
    for active in batch_places(tokens):
        last = covariance[active][is_chosen[active]].min()
        equal = np.isclose(covariance[active], last, rtol=1e-6)
        are_tied[active] = equal & bool((equal & ~is_chosen[active]).any())
    return are_tied


def covariances(tokens: PolicyTokens) -> Values:
    """The product of advantage and log-probability, each minus its mean over the batch."""
    advantages = tokens.advantages - tokens.averaged_over_batch(tokens.advantages)
    return advantages * (tokens.log_probs - tokens.averaged_over_batch(tokens.log_probs))


def batch_places(tokens: PolicyTokens) -> list[Integers]:
    """The indices of the active tokens of each batch that has some."""
    numbers = np.unique(tokens.batch[tokens.mask])
    return [np.flatnonzero(tokens.mask & (tokens.batch == number)) for number in numbers]


def reinforce_normalised(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """-A times the truncated ratio, divided by that ratio's mean over the batch."""
    return -tokens.advantages * normalised(np.minimum(tokens.ratios, constants.truncation), tokens)


def tis_normalised(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the truncated ratio, divided by that ratio's mean over the batch."""
    return ppo(tokens, constants) * normalised(_truncated(tokens, constants), tokens)


def normalised(factors: Values, tokens: PolicyTokens) -> Values:
    """Factors whose mean over the active tokens of a batch is 1."""
    means = tokens.averaged_over_batch(factors)
    return np.divide(factors, means, out=np.ones(len(means)), where=means > 0)


def tis_bounded(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the token's ratio, clipped to its bounds."""
    factors = np.maximum(_truncated(tokens, constants), constants.kept_low)
    return ppo(tokens, constants) * factors


def icepop(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the token's ratio, 0 if that is out of bounds."""
    return _dropped(np.exp(tokens.rollout_log_ratios), tokens, constants)


def sequence_icepop(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative times the product of the sequence's ratios, 0 if that is out of bounds."""
    return _dropped(np.exp(tokens.summed(tokens.rollout_log_ratios)), tokens, constants)


def _dropped(factors: Values, tokens: PolicyTokens, constants: LossConstants) -> Values:
    is_kept = (factors >= constants.kept_low) & (factors <= constants.truncation)
    return np.where(is_kept, ppo(tokens, constants) * factors, 0.0)


def product_masked(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative, 0 if the product of the sequence's ratios is out of bounds."""
    is_kept = kept(tokens.summed(tokens.rollout_log_ratios), constants)
    return np.where(is_kept, ppo(tokens, constants), 0.0)


def outlier_masked(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative, 0 if the ratio of any active token of the sequence is an outlier."""
    is_kept = np.equal(tokens.summed(outliers(tokens, constants).astype(np.float64)), 0)
    return np.where(is_kept, ppo(tokens, constants), 0.0)


def outliers(tokens: PolicyTokens, constants: LossConstants) -> Mask:
    """Whether the ratio of the token itself is an outlier."""
    ratios = np.exp(tokens.rollout_log_ratios)
    return np.asarray((ratios < constants.outlier_low) | (ratios > constants.outlier_high))


def opsm(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative, 0 for A < 0 where the sequence's mean of -log r is above a bound."""
    is_far = tokens.averaged(-tokens.log_ratios) > constants.sequence_divergence
    return np.where(is_far & (tokens.advantages < 0), 0.0, ppo(tokens, constants))


def m2po(tokens: PolicyTokens, constants: LossConstants) -> Values:
    """PPO's derivative, 0 for tokens that make the mean of squared log-ratios too large."""
    return np.where(of_small_moment(tokens, constants), ppo(tokens, constants), 0.0)


def of_small_moment(tokens: PolicyTokens, constants: LossConstants) -> Mask:
    """Whether M2PO keeps a token.

    In every batch it keeps the tokens with the smallest squared log-ratios of the new to the
    rollout policy: as many as have a mean square below the bound, and at least one.
    """
    squares = (tokens.log_ratios + tokens.rollout_log_ratios) ** 2
    is_kept = np.zeros(len(squares), np.bool_)
    for active in batch_places(tokens):
        ascending = active[np.argsort(squares[active], kind="stable")]
        means = np.cumsum(squares[ascending]) / np.arange(1, len(ascending) + 1)
        is_kept[ascending[: max(np.count_nonzero(means < constants.second_moment), 1)]] = True
    return is_kept


def _truncated(tokens: PolicyTokens, constants: LossConstants) -> Values:
    return np.minimum(np.exp(tokens.rollout_log_ratios), constants.truncation)


def _corrected(log_ratios: Values, tokens: PolicyTokens, constants: LossConstants) -> Values:
    return ppo(tokens, constants) * np.minimum(np.exp(log_ratios), constants.truncation)
