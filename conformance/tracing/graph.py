"""The operations of all ranks as one graph, in which collectives join the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.batch.altered import PAINT
from conformance.findings.trace import READ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Operation, RankTrace

ALLOCATIONS = ("aten.new_empty", "aten.empty", "aten.ones_like", "aten.zeros_like", "aten.new_")
"""Operations whose results hold old bytes, or nothing of what they are given."""

NEGLIGIBLE = 1e-6
"""How far from 1 a product may be that changes nothing: some roundings in float32."""


def is_close(one: float, other: float) -> bool:
    """Whether two numbers are equal up to float32 rounding."""
    return math.isclose(one, other, rel_tol=NEGLIGIBLE, abs_tol=1e-12)


class Node(NamedTuple):
    """An operation, by its rank and its place there."""

    rank: int
    place: int


@dataclass(frozen=True, eq=False)
class Graph:
    """What each operation of each rank was made of."""

    traces: Sequence[RankTrace]

    def operation(self, node: Node) -> Operation:
        """The operation itself."""
        return self.traces[node.rank].operations[node.place]

    def inputs(self, node: Node) -> list[Node]:
        """What an operation was made of; of a collective, on all ranks of its group."""
        operation = self.operation(node)
        if operation.collective is None:
            return [Node(node.rank, place) for place in operation.inputs]
        parts = (
            Node(rank, place)
            for rank in operation.collective.group
            for one in self.traces[rank].collectives.get(operation.collective, ())
            for place in self.traces[rank].operations[one].inputs
        )
        return list(dict.fromkeys(parts))

    @cached_property
    def painted(self) -> dict[Node, bool]:
        """The nodes that hold the token's value, each with whether it is in a gradient.

        Ranks are gone through in turn until a collective stops them whose other parts come first.
        """
        found: dict[Node, bool] = {}
        before = -1
        while len(found) != before:
            before = len(found)
            for node in self._nodes():
                if node not in found:
                    self._paint(node, found)
        return found

    def _nodes(self) -> Iterator[Node]:
        for rank, trace in enumerate(self.traces):
            yield from (Node(rank, place) for place in range(len(trace.operations)))

    def _paint(self, node: Node, found: dict[Node, bool]) -> None:
        operation, held = self.operation(node), self.operation(node).contents
        if not held.is_floating or operation.name.startswith(ALLOCATIONS):
            return
        painted = [found[one] for one in self.inputs(node) if one in found]
        if operation.collective is not None:
            # Its result may have been looked at before it came.
            found.update([(node, any(painted))] if painted else [])
        elif held.nonzero and painted:
            found[node] = any(painted) or operation.backward_pass is not None
        elif held.largest == PAINT and abs(held.total) == PAINT * held.nonzero:
            found[node] = False

    def before(self, node: Node) -> Node | None:
        """The node that a painted one has the token's value from; None if it is the first.

        The first of a backward pass has it from the root of that, and not from the advantage.
        """
        painted = [one for one in self.inputs(node) if one in self.painted]
        if not painted:
            return None
        value = self.operation(node).contents.largest

        def fit(one: Node) -> tuple[bool, bool, float]:
            held = self.operation(one).contents.largest
            is_same = math.isclose(held, value, rel_tol=NEGLIGIBLE)
            return self.painted[one], is_same, held

        best = max(painted, key=fit)
        number = self.operation(node).backward_pass
        root = None if number is None else self.traces[node.rank].roots.get(number)
        if self.painted[best] or root is None or Node(node.rank, root) not in self.painted:
            return best
        return Node(node.rank, root)

    def logged(self, number: float) -> Iterator[Node]:
        """Yield where logged numbers are read; the last number that is read if none is logged.

        Of equals it is a loss that a backward pass began with.
        """
        ends = [node for node, in_gradient in self.painted.items() if not in_gradient]
        read = [node for node in reversed(ends) if self.operation(node).name == READ]
        read.sort(key=self._reads_root, reverse=True)
        yield from (one for one in read if is_close(self._size(one), abs(number)))
        yield from (one for one in reversed(ends) if is_close(self._size(one), abs(number)))
        yield from read

    def _reads_root(self, node: Node) -> bool:
        roots = self.traces[node.rank].roots.values()
        return any(one.place in roots for one in self.inputs(node))

    def _size(self, node: Node) -> float:
        return self.operation(node).contents.largest

    @property
    def ends(self) -> Iterator[Node]:
        """Yield where the adapters read a gradient that holds the token's value."""
        for rank, trace in enumerate(self.traces):
            for place in trace.gradients:
                if self.painted.get(Node(rank, place)):
                    yield Node(rank, place)
                    break
