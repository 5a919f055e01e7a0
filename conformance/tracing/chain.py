"""The chain of factors from a token's loss to its weight, over all ranks that had a part in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Count, Factor, RankTrace

ONE = 1e-6
"""How far from 1 a product may be that changes nothing: some roundings in float32."""


@dataclass(frozen=True)
class Link:
    """A factor, and the rank that applied it."""

    rank: int
    factor: Factor


@dataclass(frozen=True)
class Node:
    """A count, and the rank that has it."""

    rank: int
    place: int


@dataclass(frozen=True)
class Chain:
    """The factors of the painted token in the order in which they were applied."""

    links: tuple[Link, ...]
    traces: Sequence[RankTrace]

    @property
    def product(self) -> float:
        """The weight that the factors give."""
        return math.prod(link.factor.value for link in self.links)

    def count(self, node: Node) -> Count:
        """The count at a place of a rank's trace."""
        return self.traces[node.rank].counts[node.place]

    def operands(self, link: Link) -> list[Node]:
        """The counts that a factor is made of."""
        return [Node(link.rank, place) for place in link.factor.counts]

    def inputs(self, node: Node) -> list[Node]:
        """What a count is made of; of a collective's result, the parts of all its ranks."""
        count = self.count(node)
        if count.collective is None:
            return [Node(node.rank, place) for place in count.inputs]
        parts = (self._collectives.get((rank, count.collective)) for rank in count.collective.group)
        return [
            Node(part.rank, place)
            for part in parts
            if part is not None
            for place in self.count(part).inputs
        ]

    @cached_property
    def _collectives(self) -> dict[tuple[int, object], Node]:
        return {
            (rank, count.collective): Node(rank, place)
            for rank, trace in enumerate(self.traces)
            for place, count in enumerate(trace.counts)
            if count.collective is not None
        }


def chains(traces: Sequence[RankTrace]) -> Iterator[Chain]:
    """Yield the ways that the token's value may have gone, the ones over most ranks last.

    They begin on the rank that has the token's loss, and may go on on another one where a
    collective took the value there.
    """
    for first, trace in enumerate(traces):
        if not trace.begins:
            continue
        own = [Link(first, factor) for factor in trace.factors]
        yield _simplified(own, traces)
        for other, received in enumerate(traces):
            if other != first and not received.begins and received.factors:
                yield _simplified([*_until(own, received), *_from(other, received, own)], traces)


def _until(own: list[Link], received: RankTrace) -> list[Link]:
    """The links before the collective by which another rank received the value."""
    collective = received.factors[0].collective
    for place, link in enumerate(own):
        if collective is not None and link.factor.collective == collective:
            return own[:place]
    return own


def _from(rank: int, received: RankTrace, own: list[Link]) -> list[Link]:
    """The links on a rank that received the value; the first is what the collective did to it."""
    first, *others = received.factors
    before = _until(own, received)
    value = before[-1].factor.after if before else None
    entered = first if value is None else first.coming_from(value)
    return [Link(rank, entered), *(Link(rank, factor) for factor in others)]


def _simplified(links: list[Link], traces: Sequence[RankTrace]) -> Chain:
    """A chain without what changes nothing.

    A backward pass splits values and adds them up again, as for the maximum of two equal losses:
    the longest run of its first factors that together are 1 is left out.
    """
    start = next((n for n, link in enumerate(links) if link.factor.is_backward), len(links))
    end, product = start, 1.0
    for place in range(start, len(links)):
        if not links[place].factor.is_backward:
            break
        product *= links[place].factor.value
        if abs(product - 1) <= ONE:
            end = place + 1
    kept = [*links[:start], *links[end:]]
    return Chain(tuple(link for link in kept if abs(link.factor.value - 1) > ONE), traces)


def explaining(traces: Sequence[RankTrace], weight: float, tolerance: float) -> Chain | None:
    """The chain whose product is a weight; None if there is none."""
    fitting = (one for one in chains(traces) if abs(one.product - weight) <= tolerance * weight)
    return next(fitting, None)
