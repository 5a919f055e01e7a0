"""Known mistakes in comparing the rewards of a prompt's samples.

Each mistake is an estimator of `reference.advantages` on wrong groups or under another convention,
or uses a wrong statistic of the rewards.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Objective
from reference import advantages
from reference.aggregation import Compared, Deviation, Lone, Missing, Rejected, TokenSet
from reference.rounding import statistic_bound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum

    from conformance.expected.advantages import BatchPlacement, Estimate
    from reference.advantages import Statistic
    from reference.arrays import Integers, Values

    Wrong = tuple[str, Values]

ANSWERS: dict[str, dict[StrEnum, str]] = {
    "compared": {
        Compared.SAMPLES: "compared_by_samples",
        Compared.LONGEST_SAMPLES: "compared_by_longest_samples",
        Compared.LAST_SAMPLES: "compared_by_last_samples",
    },
    "rejected_rewards": {
        Rejected.COUNTED: "rejected_siblings_counted",
        Rejected.ZERO: "rejected_siblings_counted_as_0",
        Rejected.EXCLUDED: "rejected_siblings_excluded",
    },
    "lone_reward": {Lone.ZERO: "lone_reward_dropped", Lone.REWARD: "lone_reward_kept"},
    "missing_rewards": {
        Missing.EXCLUDED: "missing_rewards_excluded",
        Missing.ZERO: "missing_rewards_counted_as_0",
    },
    "deviation": {Deviation.UNBIASED: "unbiased_std", Deviation.BIASED: "biased_std"},
}
"""Conventions for comparing rewards, on which frameworks differ, with a name for each answer."""

DIVIDED_BY_STD = (Objective.GROUP_NORMALISED, Objective.GROUP_WHITENED, Objective.OTHERS_NORMALISED)
"""Estimators that divide by the standard deviation of a prompt's rewards."""

LEAVING_OUT = (Objective.LEAVE_ONE_OUT, Objective.OTHERS_NORMALISED)
"""Estimators whose baseline for a reward excludes the reward itself."""


def wrong_groups(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    """Yield each mistake in comparing a prompt's rewards, with its advantages: [tokens]."""
    rollouts = estimate.rollouts
    yield "groups_merged", estimate.having(groups=np.zeros_like(rollouts.groups))
    runs = np.cumsum(np.diff(rollouts.groups, prepend=rollouts.groups[:1]) != 0)
    yield "groups_cut_into_runs", estimate.having(groups=runs)
    yield from _of_fixed_sizes(estimate, placement)
    ended = rollouts.mask[rollouts.last(TokenSet.RESPONSE)]
    kept = np.where(ended[rollouts.sample], estimate.raw, 0.0)
    yield "reward_at_a_masked_token_lost", estimate.of(kept)
    yield from _of_conventions(estimate)
    yield from _of_statistics(estimate)


def _of_fixed_sizes(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    """Yield advantages if the batch is cut into groups of the size of its largest group.

    Samples left over at the end form a group of their own, or have a mean and deviation of 0.
    """
    rollouts = estimate.rollouts
    size = int(np.unique(rollouts.groups, return_counts=True)[1].max())
    for part, order in product(_parts(estimate, placement), _orders(estimate, placement)):
        place, left = np.zeros_like(part), np.zeros(len(part), np.bool_)
        for number in np.unique(part):
            members = order[part[order] == number]
            place[members] = np.arange(len(members)) // size
            left[members[len(members) // size * size :]] = True
        sliced = estimate.having(groups=part * len(part) + place)
        yield "groups_of_a_fixed_size", sliced
        if not estimate.estimator.whitens:
            is_divided = estimate.objective in DIVIDED_BY_STD
            epsilon = estimate.conventions.std_epsilon if is_divided else 1.0
            alone = np.nan_to_num(rollouts.rewards) / epsilon
            tail = left[rollouts.sample]
            yield "groups_of_a_fixed_size", np.where(tail, alone[rollouts.sample], sliced)


def _parts(estimate: Estimate, placement: BatchPlacement) -> Iterator[Integers]:
    """Yield ways to divide a batch's samples into parts: one part, or a part for each rank."""
    yield np.zeros_like(estimate.rollouts.groups)
    if placement.dp_rank is not None:
        ranks = _of_samples(placement.dp_rank, estimate)
        yield _of_samples(placement.step, estimate) * (ranks.max() + 1) + ranks


def _orders(estimate: Estimate, placement: BatchPlacement) -> Iterator[Integers]:
    """Yield orders of samples: as given, and prompts with more tokens first.

    Frameworks distribute samples over ranks in the second order.
    """
    groups, sample = estimate.rollouts.groups, estimate.rollouts.sample
    yield np.arange(len(groups))
    if placement.prompt_lengths is not None:
        tokens = np.bincount(groups, placement.prompt_lengths + np.bincount(sample))
        yield np.lexsort((groups, -tokens[groups]))


def _of_samples(of_tokens: Integers, estimate: Estimate) -> Integers:
    """The value of each sample's first token: [N]."""
    first = np.searchsorted(estimate.rollouts.sample, np.arange(len(estimate.rollouts.rewards)))
    found: Integers = of_tokens[first]
    return found


def _of_conventions(estimate: Estimate) -> Iterator[Wrong]:
    """Yield advantages under every answer to a convention except the framework's own answer."""
    for name_of_all, answers in ANSWERS.items():
        convention = name_of_all.partition("_")[0]  # the field of `EstimatorConventions`
        for answer, name in answers.items():
            if answer is not getattr(estimate.conventions, convention):
                yield name, estimate.by(**{convention: answer})


def _of_statistics(estimate: Estimate) -> Iterator[Wrong]:
    """Yield mistakes in the baseline and the divisor of rewards, with their advantages."""
    peers, divisor = estimate.peers, _divisor(estimate)
    yield "baseline_left_out", _raw(estimate, np.zeros(len(peers.rewards)), divisor)
    if estimate.objective in DIVIDED_BY_STD:
        yield "std_left_out", _raw(estimate, _baseline(estimate), 1.0)
    if estimate.objective in LEAVING_OUT:
        yield "own_reward_in_baseline", _raw(estimate, peers.of_group(_mean), divisor)
    sampled = replace(peers, counted=peers.counted | peers.missing)
    largest = int(sampled.of_group(len).max())

    def filled(rewards: Values) -> Values:
        """A group's rewards, filled with zeros up to the size of the largest group."""
        missing = largest - len(rewards) - (estimate.objective in LEAVING_OUT)
        return np.pad(rewards, (0, max(missing, 0)))

    mean = _statistic(estimate, lambda rewards: _mean(filled(rewards)))
    std = advantages.std(estimate.conventions)
    spread = _statistic(estimate, lambda rewards: std(filled(rewards)))
    yield "missing_siblings_counted", _raw(estimate, mean, _divisor(estimate, spread, mean))


def _mean(rewards: Values) -> float:
    return float(rewards.mean())


def _statistic(estimate: Estimate, statistic: Statistic) -> Values:
    """For each sample, a statistic of the rewards with which its reward is compared: [N]."""
    peers = estimate.peers
    chosen = peers.of_others if estimate.objective in LEAVING_OUT else peers.of_group
    return chosen(statistic)


@lru_cache(maxsize=16)
def _std(estimate: Estimate) -> Values:
    """For each sample, the standard deviation of the rewards it is compared with: [N]."""
    return _statistic(estimate, advantages.std(estimate.conventions))


@lru_cache(maxsize=16)
def _baseline(estimate: Estimate) -> Values:
    """The baseline that is subtracted from each reward: [N]."""
    return _statistic(estimate, _mean)


def _divisor(
    estimate: Estimate, spread: Values | None = None, mean: Values | None = None
) -> Values | float:
    """The divisor of each centred reward, given a wrong spread or mean: [N] or 1."""
    epsilon = estimate.conventions.std_epsilon
    if estimate.objective is Objective.MEAN_NORMALISED:
        mean = _baseline(estimate) if mean is None else mean
        return np.where(mean > 0, mean + epsilon, np.inf)
    if estimate.objective not in DIVIDED_BY_STD:
        return 1.0
    spread = _std(estimate) if spread is None else spread
    if estimate.objective is Objective.OTHERS_NORMALISED:
        return np.where(spread > 0, spread + epsilon, 1.0)
    return spread + epsilon


def _raw(estimate: Estimate, baseline: Values, divisor: Values | float) -> Values:
    """The advantages, [tokens], for a baseline and a divisor of rewards, [N] each."""
    peers, lone = estimate.peers, estimate.conventions.lone
    of_samples = peers.compared((peers.rewards - baseline) / divisor, lone)
    right = peers.compared((peers.rewards - _baseline(estimate)) / _divisor(estimate), lone)
    return estimate.of(estimate.raw + (of_samples - right)[estimate.rollouts.sample])


VISIBLE = 1e-3
"""The smallest relative rounding error of a variance that is tried as an explanation."""


def read_off_variances(estimate: Estimate, observed: Values) -> Iterator[Wrong]:
    """Yield advantages with variances that a difference of squares may give after float32 rounding.

    ``observed`` are advantages, [tokens], NaN where they cannot be seen. They show the divisor of
    each sample's reward.
    """
    if estimate.objective not in DIVIDED_BY_STD or estimate.estimator.whitens:
        return
    peers, sample = estimate.peers, estimate.rollouts.sample
    numbers = _statistic(estimate, len)
    variance = _std(estimate) ** 2
    squares = _statistic(estimate, lambda rewards: float((rewards**2).mean()))
    largest = int(numbers.max(initial=1))
    freedom = np.maximum(numbers - estimate.conventions.deviation.lost_degrees_of_freedom, 1)
    lost = statistic_bound("float32", largest) * squares * numbers / freedom
    if not (lost > VISIBLE * variance)[numbers > 1].any():
        return
    centred = (peers.rewards - _baseline(estimate))[sample]
    with np.errstate(divide="ignore", invalid="ignore"):
        divisors = centred / observed
    spread = np.where(divisors == 1, 0.0, divisors - estimate.conventions.std_epsilon)
    is_undivided = np.abs(observed - centred) <= VISIBLE * np.abs(centred)
    squared = np.where(is_undivided & (lost >= variance)[sample], variance[sample], spread**2)
    fits = (np.abs(squared - variance[sample]) <= lost[sample]) & (numbers > 1)[sample]
    yield "difference_of_squares", np.where(fits, observed, estimate.advantages)
