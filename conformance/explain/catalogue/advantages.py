"""Known mistakes in the advantages that a framework computes from rewards.

Each mistake applies an estimator of `reference.advantages` to wrong rewards, groups, tokens or
constants, or whitens by the mean and variance of wrong tokens. If a batch is reordered between the
critic's forward pass and the estimator, values are in wrong rows. The order cannot be predicted, so
the order that best explains the observed advantages is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.contract.objective import OF_GROUPS, OF_VALUES, PENALISING, Objective
from conformance.explain.catalogue.groups import wrong_groups
from reference import advantages
from reference.aggregation import TokenSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.expected.advantages import BatchPlacement, Estimate
    from reference.arrays import Integers, Mask, Values

    Wrong = tuple[str, Values]

LARGEST = 2**20
"""The largest product of a batch's tokens and samples for which swapped values are searched."""

OTHER_SET = {TokenSet.ACTIVE: TokenSet.RESPONSE, TokenSet.RESPONSE: TokenSet.ACTIVE}


def wrong_advantages(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    """Yield each mistake that an estimator may have, with its advantages: [tokens]."""
    if estimate.objective in OF_GROUPS:
        yield from wrong_groups(estimate, placement)
    else:
        yield from _of_discounts(estimate)
    if estimate.objective in (*PENALISING, Objective.DISTILLED):
        yield "divergence_left_out", estimate.under(penalty=0.0)
        yield "divergence_of_other_tokens", _other_tokens(estimate, "penalised")
    if estimate.objective in OF_VALUES:
        yield from _of_values(estimate, placement)
    if estimate.estimator.whitens:
        yield from _of_whitening(estimate, placement)


def _of_discounts(estimate: Estimate) -> Iterator[Wrong]:
    yield "discount_left_out", estimate.under(discount=1.0)
    yield "reward_at_another_token", _other_tokens(estimate, "rewarded")
    yield "other_transitions", _other_tokens(estimate, "transitions")
    yield "reward_at_a_masked_token_lost", estimate.having(rewards=_rewards_on(estimate))


def _other_tokens(estimate: Estimate, convention: str) -> Values:
    """The advantages if a convention of the estimator used the other set of tokens."""
    other = OTHER_SET[getattr(estimate.conventions, convention)]
    return estimate.by(**{convention: other})


def _rewards_on(estimate: Estimate) -> Values:
    """The samples' rewards, 0 if the rewarded token is not part of the recursion: [N]."""
    rollouts = estimate.rollouts
    last = rollouts.last(estimate.conventions.rewarded)
    kept = np.zeros(len(rollouts.rewards), np.bool_)
    kept[rollouts.sample[last]] = estimate.path[last]
    return np.where(kept, rollouts.rewards, 0.0)


def _of_values(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    yield "trace_left_out", estimate.under(trace=1.0)
    for rows in _rows(estimate, placement):
        if rows.reads_padding:
            found = rows.raw(np.arange(len(estimate.rollouts.rewards)))
            yield "padding_bootstrapped", estimate.of(found)


def _of_whitening(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    if not estimate.rollouts.tokens(estimate.conventions.whitened).any():
        return
    yield "not_whitened", estimate.raw
    yield "whitened_by_other_tokens", _other_tokens(estimate, "whitened")
    yield from _of_copies(estimate)
    yield from _of_padding(estimate)
    for name, part in placement.parts():
        yield f"whitened_per_{name}", _of_parts(estimate, part)


def _of_copies(estimate: Estimate) -> Iterator[Wrong]:
    """Yield advantages whose variance counts each token several times; the mean stays the same.

    Rewards at masked tokens may be lost as well. That mistake is then yielded instead, since it
    changes advantages more.
    """
    lost = replace(estimate.rollouts, rewards=_rewards_on(estimate))
    is_lost = (lost.rewards != estimate.rollouts.rewards).any()
    for copies in (2, 4, 8):
        degrees = estimate.conventions.lost_degrees_of_freedom / copies
        counted = replace(estimate.conventions, lost_degrees_of_freedom=degrees)
        yield "copies_whitened", estimate.estimator(estimate.rollouts, counted)
        if is_lost:
            yield "reward_at_a_masked_token_lost", estimate.estimator(lost, counted)


def _of_padding(estimate: Estimate) -> Iterator[Wrong]:
    """Yield advantages that are whitened by a mean over responses padded with 0."""
    raw, rollouts, conventions = estimate.raw, estimate.rollouts, estimate.conventions
    lengths, chosen = np.bincount(rollouts.sample), rollouts.tokens(conventions.whitened)
    name = "padding_whitened"
    mean = raw[chosen].sum() / (lengths.max() * len(lengths))
    around = raw[chosen] - mean
    for divisor in (len(around), max(len(around) - 1, 1)):
        variance = float((around**2).sum()) / divisor
        yield name, (raw - mean) / math.sqrt(variance + advantages.VARIANCE_EPSILON)


def _of_parts(estimate: Estimate, part: Integers) -> Values:
    """The advantages, whitened separately in each part of the batch."""
    found, raw, rollouts = np.zeros_like(estimate.raw), estimate.raw, estimate.rollouts
    for number in np.unique(part):
        outside = part != number
        mask = rollouts.tokens(estimate.conventions.whitened) & ~outside
        only = replace(estimate.conventions, whitened=TokenSet.ACTIVE)
        found = np.where(
            outside, found, advantages.whitened(raw, replace(rollouts, mask=mask), only)
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _ValueRows:
    """Samples as rows of one width; each response starts at a column of its own, [N]."""

    estimate: Estimate
    starts: Integers
    width: int
    reads_padding: bool
    """Whether the estimator continues past the end of a sample into padding."""

    def raw(self, donors: Integers) -> Values:
        """GAE of all tokens if each sample has the values of its donor; ``donors`` are [N]."""
        estimate, rollouts = self.estimate, self.estimate.rollouts
        first = np.searchsorted(rollouts.sample, np.arange(len(donors)))[rollouts.sample]
        place = self.starts[rollouts.sample] + np.arange(len(first)) - first
        cells = rollouts.sample, place
        values = np.full((len(donors), self.width), PADDING_VALUE)
        valued = rollouts.tokens(estimate.conventions.valued)
        values[cells] = np.where(valued, rollouts.values, 0.0)
        values = values[donors]
        if not self.reads_padding:
            is_own = np.zeros(values.shape, np.bool_)
            is_own[cells] = True
            values = np.where(is_own, values, 0.0)
        deltas = estimate.constants.discount * np.pad(values[:, 1:], ((0, 0), (0, 1))) - values
        deltas[cells] += advantages.token_rewards(
            rollouts, estimate.constants, estimate.conventions
        )
        for column in range(self.width - 2, -1, -1):
            deltas[:, column] += estimate.decay * deltas[:, column + 1]
        found: Values = deltas[cells]
        return found


def values_of_others(
    estimate: Estimate, placement: BatchPlacement, observed: Values
) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield the mistake, its advantages, [tokens], and the names of mistakes made together with it.

    ``observed`` are advantages, NaN where they cannot be seen. The yielded advantages may not fit
    the observed ones.
    """
    rollouts = estimate.rollouts
    in_order = np.arange(len(rollouts.rewards))
    if estimate.objective not in OF_VALUES or len(in_order) * len(observed) > LARGEST:
        return
    for rows in _rows(estimate, placement):
        donors = _donors(rows, observed)
        if (donors != in_order).any():
            together = ("padding_bootstrapped",) if rows.reads_padding else ()
            yield "values_of_other_samples", estimate.of(rows.raw(donors)), together


def _rows(estimate: Estimate, placement: BatchPlacement) -> Iterator[_ValueRows]:
    """Yield the possible layouts of samples in rows; none if the estimator skips masked tokens.

    An estimator that skips masked tokens never reads a value past the end of a sample.
    """
    if estimate.conventions.transitions is TokenSet.ACTIVE:
        return
    samples = len(estimate.rollouts.rewards)
    responses = np.bincount(estimate.rollouts.sample, minlength=samples)
    for (starts, width), reads_padding in product(placement.rows(responses), (False, True)):
        yield _ValueRows(estimate=estimate, starts=starts, width=width, reads_padding=reads_padding)


def _donors(rows: _ValueRows, observed: Values) -> Integers:
    """For each sample, the sample whose values best explain its advantages, or itself: [N]."""
    sample, seen = rows.estimate.rollouts.sample, np.isfinite(observed)
    samples = len(rows.estimate.rollouts.rewards)
    by_donor = np.stack([rows.raw(np.full(samples, donor)) for donor in range(samples)])
    candidates: list[Values] = []
    if rows.estimate.estimator.whitens:
        longest = seen & (sample == np.bincount(sample[seen], minlength=1).argmax())
        candidates += _whitened_as(observed, by_donor, longest)
    errors = [_errors(found - observed, seen, sample) for found in candidates or [by_donor]]
    best = min(errors, key=lambda one: float(one.min(axis=0).sum()))
    fits_own = np.diagonal(best) <= best.min(axis=0)
    donors: Integers = np.where(fits_own, np.arange(samples), best.argmin(axis=0))
    return donors


def _errors(off: Values, seen: Mask, sample: Integers) -> Values:
    """The largest error of each sample's tokens for each donor, [N, N], given tokens' errors."""
    largest = np.zeros((len(off), len(off)))
    for of_donor, so_far in zip(np.abs(off), largest, strict=True):
        np.maximum.at(so_far, sample[seen], of_donor[seen])
    return largest


def _whitened_as(observed: Values, by_donor: Values, longest: Mask) -> Iterator[Values]:
    """Yield whitened advantages by donor, [N, tokens], for each assumed donor of one sample.

    Whitening multiplies all advantages by one number and adds another. Both numbers are fitted to
    the longest sample, given its assumed donor.
    """
    for raw in by_donor:
        design = np.stack([raw[longest], np.ones(int(longest.sum()))], axis=1)
        factor, shift = np.linalg.lstsq(design, observed[longest], rcond=None)[0]
        if factor > 0:
            yield factor * by_donor + shift
