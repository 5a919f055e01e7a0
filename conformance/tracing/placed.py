"""Finds the entries of a tensor that each token's weight depends on, by a run with marked entries.

A mark is a factor that differs for each entry and shows up in the weights that depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import MARKS
from conformance.tracing.right_counts import counts_with_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from conformance.expected.step_context import StepContext
    from conformance.plan.matrix import MatrixCell
    from conformance.tracing.right_counts import Named
    from conformance.tracing.right_values import Entries

CLOSE = 1e-4
"""The largest relative difference between equal counts, after all roundings of a step."""


class EntryPlace(NamedTuple):
    """The place of a replaced entry: its rank, the call on that rank, and its index."""

    rank: int
    times: int
    entry: int


@dataclass(frozen=True)
class OrdinaryRun:
    """An unchanged run of a finding's job, with the weights of the tokens of all of its steps.

    ``observed`` are the observed weights: [ranks, tokens].
    """

    cell: MatrixCell
    contexts: tuple[StepContext, ...]
    observations: tuple[Observation, ...]
    observed: NDArray[np.float64]

    @property
    def expected(self) -> NDArray[np.float64]:
        """The right weights of all tokens."""
        return np.concatenate([context.expected for context in self.contexts])

    def counts(self, token: int) -> Named:
        """The reference's counts for a token's weight, by name."""
        ends = accumulate((len(one.expected) for one in self.contexts), initial=0)
        for context, (start, end) in zip(self.contexts, pairwise(ends), strict=True):
            if start <= token < end:
                return counts_with_parts(context, token - start)
        raise IndexError(token)


def counts_placed(
    run: OrdinaryRun, held: Entries, marked: NDArray[np.float64]
) -> dict[str, Entries]:
    """The values that would make all weights right, by the name of the reference's count.

    The marks show which entry each weight depends on. Empty if a wrong weight depends on no entry.
    """
    needed: dict[EntryPlace, Named] = {}
    for rank, token in np.argwhere(run.observed * run.expected):
        observed, right = float(run.observed[rank, token]), float(run.expected[token])
        place, multiplies = _marked(float(marked[rank, token]) / observed, held)
        if place is None:
            if not is_close(observed, right):
                return {}  # this weight is wrong and does not depend on the entries
            continue
        before = held[place.rank][place.times][place.entry] or 1.0
        value = before * (right / observed if multiplies else observed / right)
        counts = run.counts(int(token)).items()
        fitting = {name: count for name, count in counts if is_close(count, value)}
        known = needed.setdefault(place, fitting)
        needed[place] = {name: count for name, count in fitting.items() if known.get(name) == count}
    several = [*needed.values()]
    return {
        name: _replaced(held, {place: counts[name] for place, counts in needed.items()})
        for name in (several[0] if several else ())
        if all(name in counts for counts in several)
    }


def moves(run: OrdinaryRun, held: Entries, marked: NDArray[np.float64]) -> bool:
    """Whether the mark of at least one entry changes a weight."""
    return any(
        _marked(float(marked[rank, token] / run.observed[rank, token]), held)[0] is not None
        for rank, token in np.argwhere(run.observed)
    )


def _marked(ratio: float, held: Entries) -> tuple[EntryPlace | None, bool]:
    """The entry whose mark changed a weight by ``ratio``, if any.

    The second value says whether the weight is multiplied, not divided, by the entry.
    """
    multiplies = abs(ratio) > 1
    mark = abs(ratio) if multiplies or not ratio else 1 / abs(ratio)
    rank, index = divmod(round(mark), MARKS) if np.isfinite(mark) else (0, 0)
    if not 1 <= rank <= len(held) or abs(mark - round(mark)) > 0.1:
        return None, multiplies
    ends = [*accumulate(map(len, held[rank - 1]))]
    times = sum(end <= index for end in ends)
    if times == len(ends):
        return None, multiplies
    start = ends[times - 1] if times else 0
    return EntryPlace(rank - 1, times, index - start), multiplies


def _replaced(held: Entries, needed: Mapping[EntryPlace, float]) -> Entries:
    return tuple(
        tuple(
            tuple(
                needed.get(EntryPlace(rank, times, index), value)
                for index, value in enumerate(entries)
            )
            for times, entries in enumerate(of_rank)
        )
        for rank, of_rank in enumerate(held)
    )


def is_close(one: float, other: float) -> bool:
    """Whether two counts are equal up to the roundings of a step."""
    return math.isclose(one, other, rel_tol=CLOSE)
