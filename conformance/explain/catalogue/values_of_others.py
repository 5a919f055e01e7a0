"""Advantages of the critic's values of other samples, which are read off what was observed.

A batch that is reordered between the critic's forward pass and the estimator has its values in
wrong rows. Nothing predicts the order: it is the one by which observed advantages come about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.contract.objective import OF_VALUES
from conformance.explain.catalogue.mistake import Kind, known
from reference import advantages
from reference.aggregation import TokenSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.advantages import BatchPlacement, Estimate

    Values = NDArray[np.float64]
    Samples = NDArray[np.int64]

known(
    {"values_of_other_samples": "advantages use the critic's values of other samples"},
    rank=15,
    kind=Kind.READ_OFF,
)

LARGEST = 2**20
"""Advantages of the largest batch, times its samples, that are compared by donor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Samples as rows of one width, in which responses start at a place each, [N]."""

    estimate: Estimate
    starts: Samples
    width: int
    reads_padding: bool
    """Whether the estimator goes on behind a sample."""

    def raw(self, donors: Samples) -> Values:
        """GAE of all tokens with the values of the donor's row for every sample's, [N]."""
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
    """Yield the mistake, the advantages, [tokens], that it gives, and the mistakes on top of it.

    ``observed`` are advantages, NaN where they cannot be seen. What is yielded may not fit them.
    """
    rollouts = estimate.rollouts
    if estimate.objective not in OF_VALUES:
        return
    if estimate.conventions.transitions is not TokenSet.RESPONSE:
        return  # rows have no gaps
    in_order = np.arange(len(rollouts.rewards))
    if len(in_order) * len(observed) > LARGEST:
        return
    responses = np.bincount(rollouts.sample, minlength=len(in_order))
    for starts, width in placement.rows(responses):
        for together in ((), ("padding_bootstrapped",)):
            rows = _Rows(
                estimate=estimate, starts=starts, width=width, reads_padding=bool(together)
            )
            donors = _donors(rows, observed)
            if (donors != in_order).any():
                yield "values_of_other_samples", estimate.of(rows.raw(donors)), together


def _donors(rows: _Rows, observed: Values) -> Samples:
    """The sample whose values fit a sample's advantages best, for each, itself if any does: [N]."""
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
    donors: Samples = np.where(fits_own, np.arange(samples), best.argmin(axis=0))
    return donors


def _errors(off: Values, seen: NDArray[np.bool_], sample: Samples) -> Values:
    """The largest error of a sample's tokens by each donor, given those of tokens: [N, N]."""
    largest = np.zeros((len(off), len(off)))
    for of_donor, so_far in zip(np.abs(off), largest, strict=True):
        np.maximum.at(so_far, sample[seen], of_donor[seen])
    return largest


def _whitened_as(
    observed: Values, by_donor: Values, longest: NDArray[np.bool_]
) -> Iterator[Values]:
    """Yield advantages by donor, [N, tokens], as whitened if one sample has a certain donor.

    Whitening multiplies all by one number and adds another, which the sample of most tokens tells.
    """
    for raw in by_donor:
        design = np.stack([raw[longest], np.ones(int(longest.sum()))], axis=1)
        factor, shift = np.linalg.lstsq(design, observed[longest], rcond=None)[0]
        if factor > 0:
            yield factor * by_donor + shift
