"""Chooses few layouts that together have every pair of properties that occurs in many."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from adapters.contract import Layout

Pair = frozenset[tuple[str, object]]


def pairwise(layouts: Iterable[Layout]) -> list[Layout]:
    """Layouts that cover all pairs of properties of the given ones, small worlds first.

    Two properties are, for example, ``cp=2`` and ``format=thd``. The choice is greedy: next is the
    layout with most pairs that are still missing, of equals the one with fewest ranks.
    """
    candidates = sorted(layouts, key=lambda layout: layout.world_size)
    pairs = {layout: _pairs(layout) for layout in candidates}
    missing = set[Pair]().union(*pairs.values())
    chosen = []
    while missing:
        best = max(candidates, key=lambda layout: len(pairs[layout] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen, key=lambda layout: layout.world_size)


def _pairs(layout: Layout) -> set[Pair]:
    properties = [("option", option) for option in layout.options]
    properties += [(name, value) for name, value in vars(layout).items() if name != "options"]
    return {frozenset(pair) for pair in combinations(properties, 2)}
