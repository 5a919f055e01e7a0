"""The fewest pairs of a mistake and a condition that explain all that is wrong.

A pair may not say that something is wrong that is right. Of those that do not, the one that
explains most is chosen again and again; ties go to the one that explains most without another, then
to the simpler condition, then to the mistake that is more common.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from conformance.explain.catalogue.mistake import MISTAKES, Kind, commonness

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from conformance.explain.table import Explanation, Pair, Part, Table

LARGEST = 9
"""Mistakes in an explanation: a factor and two others for each term of the largest loss."""


def cover(table: Table) -> list[Pair]:
    """The chosen pairs, in the order in which they were chosen."""
    explainable = [explanations for explanations in table.explanations.values() if explanations]
    chosen: list[Pair] = []
    left = explainable
    for pairs in _by_certainty(table):
        while left and (best := _best(pairs, left, chosen)) is not None:
            chosen.append(best)
            left = [one for one in left if explanation(one, chosen) is None]
    return _without_needless(
        chosen, [one for one in explainable if explanation(one, chosen) is not None]
    )


def _by_certainty(table: Table) -> tuple[list[Pair], list[Pair]]:
    """All pairs: those whose mistakes are predicted, which findings can contradict, then others."""
    ordered = sorted(table.claims, key=commonness)
    predicted, inferred = (
        [
            pair
            for mistake in ordered
            if MISTAKES[mistake].is_read_off is is_inferred
            for pair in table.pairs(mistake)
        ]
        for is_inferred in (False, True)
    )
    return predicted, inferred


def explanation(explanations: Iterable[Explanation], chosen: Sequence[Pair]) -> Explanation | None:
    """The first explanation all parts of which the chosen pairs give."""
    given = (one for one in explanations if all(part.is_given_by(chosen) for part in one))
    return next(given, None)


def _best(
    pairs: Sequence[Pair], left: Iterable[Iterable[Explanation]], chosen: Sequence[Pair]
) -> Pair | None:
    """The pair that completes the explanations of most findings, or else is a part of most."""
    possible = [*chain.from_iterable(left)]
    alone = _gains(one for one in possible if len(one) == 1)
    missing = [[part for part in one if not part.is_given_by(chosen)] for one in possible]
    for size in range(1, LARGEST + 1):
        best = _most_frequent(pairs, _gains(one for one in missing if len(one) <= size), alone)
        if best is not None:
            return best
    return None


def _gains(explanations: Iterable[Iterable[Part]]) -> dict[str, int]:
    """For each mistake, the terms that it has a part in."""
    gains: dict[str, int] = defaultdict(int)
    for part in chain.from_iterable(explanations):
        for mistake in part.names:
            gains[mistake] |= part.bit
    return gains


def _most_frequent(
    pairs: Sequence[Pair], gains: Mapping[str, int], alone: Mapping[str, int]
) -> Pair | None:
    """The pair that gives most parts; of several that do, the one that explains most alone."""

    def gain(pair: Pair) -> tuple[int, int, int]:
        counts = [(pair.holds & each.get(pair.mistake, 0)).bit_count() for each in (gains, alone)]
        return counts[0], counts[1], -_facts(pair)

    best = max(pairs, key=gain, default=None)
    return best if best is not None and gain(best)[0] else None


def _facts(pair: Pair) -> int:
    """The facts of a pair's condition; that it is of logged numbers may lie in the mistake."""
    return max(len(pair.condition), MISTAKES[pair.mistake].kind is Kind.LOGGED)


def _without_needless(chosen: list[Pair], covered: Sequence[Sequence[Explanation]]) -> list[Pair]:
    """The pairs without those that the others make up for, the last chosen looked at first."""
    for pair in reversed(chosen):
        others = [one for one in chosen if one is not pair]
        if all(explanation(one, others) is not None for one in covered):
            chosen = others
    return chosen
