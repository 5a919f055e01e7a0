"""Chooses few candidates that together show everything that any of many shows."""

from __future__ import annotations

import heapq
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from adapters.contract import Layout

Candidate = TypeVar("Candidate")
Shown = TypeVar("Shown")


def covering(
    candidates: Mapping[Candidate, AbstractSet[Shown]],
) -> dict[Candidate, AbstractSet[Shown]]:
    """The chosen candidates, each with what no candidate chosen before it shows.

    The choice is greedy: next is the candidate that shows most of what is still missing, of equals
    the first. That takes at most ln(n) + 1 times the fewest candidates that would do, where a
    candidate shows at most n (Chvátal 1979, A greedy heuristic for the set-covering problem).
    """
    missing = set[Shown]().union(*candidates.values())
    order = [*candidates]
    # A candidate never comes to show more of what is missing, so that one at the head of the queue
    # whose count is up to date is the best.
    queue = [(-len(candidates[one]), place) for place, one in enumerate(order)]
    heapq.heapify(queue)
    chosen: dict[Candidate, AbstractSet[Shown]] = {}
    while missing:
        count, place = heapq.heappop(queue)
        new = candidates[order[place]] & missing
        if len(new) < -count:
            heapq.heappush(queue, (-len(new), place))
            continue
        chosen[order[place]] = new
        missing -= new
    return chosen


def layout_properties(layout: Layout) -> list[str]:
    """What is said of a layout, such as ``cp=2`` and ``format=thd``.

    That there is no pipeline is said of none: every other property is seen without one too.
    """
    kept = {name: value for name, value in vars(layout).items() if name not in ("pp", "options")}
    sizes = kept | ({"pp": layout.pp} if layout.pp > 1 else {})
    options = layout.options or ("none",)
    return [
        *(f"{name}={value}" for name, value in sizes.items()),
        *(f"option={option}" for option in options),
    ]


def pairwise(layouts: Iterable[Layout]) -> list[Layout]:
    """Layouts that have all pairs of properties that the given ones have, small worlds first."""
    by_size = sorted(layouts, key=lambda layout: layout.world_size)
    pairs = {one: {*combinations(layout_properties(one), 2)} for one in by_size}
    return sorted(covering(pairs), key=lambda layout: layout.world_size)
