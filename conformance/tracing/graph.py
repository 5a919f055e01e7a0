"""The operations of all ranks as one graph, in which collectives join the ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.batch.altered import PAINT, SELECTED
from conformance.findings.trace import LISTED, READ

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from conformance.findings.trace import Contents, Line, Operation, RankTrace

ALLOCATIONS = ("aten.new_empty", "aten.empty", "aten.ones_like", "aten.zeros_like", "aten.new_")
"""Operations whose results hold old bytes, or nothing of what they are given."""

MOVING = tuple(
    f"aten.{name}"
    for name in ("slice", "select", "narrow", "index", "roll", "constant_pad", "flip")
)
"""The beginnings of the names of operations that give entries other places, or take them back."""

EXTREMES = ("aten.max.", "aten.min.", "aten.amax.", "aten.amin.", "aten.median.")
"""The beginnings of the names of operations that choose one of many entries."""

NEGLIGIBLE = 1e-6
"""The distance from 1 of a product that changes nothing: some roundings in float32."""


def is_close(one: float, other: float) -> bool:
    """Whether two numbers are equal up to float32 rounding."""
    return math.isclose(one, other, rel_tol=NEGLIGIBLE, abs_tol=1e-12)


def is_of_count(factor: float) -> bool:
    """Whether a factor multiplies or divides by a whole number; one that is not finite does not."""
    return math.isfinite(factor) and any(is_close(one, round(one)) for one in (factor, 1 / factor))


class Node(NamedTuple):
    """An operation, by its rank and its place there."""

    rank: int
    place: int


class Entry(NamedTuple):
    """The size of the token's value in a tensor, and its place among the entries of a small one."""

    size: float
    place: int | None = None
    entries: int = 0

    def after(self, held: Contents) -> Entry:
        """The entry of the next tensor: at the same place, or of equal size, or the largest."""
        sizes = [abs(one) for one in held.values]
        if self.place is not None and len(sizes) == self.entries and sizes[self.place]:
            return Entry(sizes[self.place], self.place, self.entries)
        equal = (place for place, size in enumerate(sizes) if size and is_close(size, self.size))
        place = next(equal, sizes.index(held.largest) if held.largest in sizes else None)
        return Entry(held.largest if place is None else sizes[place], place, len(sizes))


@dataclass(frozen=True, eq=False)
class Graph:
    """The inputs of each operation of each rank."""

    traces: Sequence[RankTrace]

    paint: float = PAINT
    """The size of the token's value in the column that is painted."""

    reading: tuple[str, ...] = (READ,)
    """The operations by which Python reads numbers that it makes tensors of again."""

    _carried: dict[Node, Node] = field(default_factory=dict)
    """The reads by Python of painted tensors that were made of numbers."""

    def operation(self, node: Node) -> Operation:
        """The operation itself."""
        return self.traces[node.rank].operations[node.place]

    def inputs(self, node: Node) -> list[Node]:
        """The inputs of an operation; of a collective, on all ranks of its group."""
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

    def readers(self, node: Node) -> list[Node]:
        """The operations of its rank that read what an operation made."""
        operations = enumerate(self.traces[node.rank].operations)
        return [Node(node.rank, place) for place, one in operations if node.place in one.inputs]

    @cached_property
    def callers_of(self) -> dict[Line, set[Line]]:
        """The lines that called the function of each line which asked for an operation."""
        found: dict[Line, set[Line]] = defaultdict(set)
        for trace in self.traces:
            for operation in trace.operations:
                for line, caller in pairwise(operation.stack[:2]):
                    found[line].add(caller)
        return found

    @cached_property
    def painted(self) -> dict[Node, bool]:
        """The nodes that hold the token's value, each with whether it is in a gradient.

        Ranks are gone through in turn until a collective stops them whose other parts come first.
        """
        found: dict[Node, bool] = {}
        before = -1
        while len(found) != before:
            before = len(found)
            for node in self.nodes():
                if node not in found:
                    self._paint(node, found)
        return found

    @property
    def has_paint(self) -> bool:
        """Whether a tensor has the token's value alone."""
        return any(self._is_leaf(node, self.paint) for node in self.painted)

    def nodes(self) -> Iterator[Node]:
        """Yield all operations of all ranks."""
        for rank, trace in enumerate(self.traces):
            yield from (Node(rank, place) for place in range(len(trace.operations)))

    def _paint(self, node: Node, found: dict[Node, bool]) -> None:
        operation, held = self.operation(node), self.operation(node).contents
        if not held.is_measured or operation.name.startswith(ALLOCATIONS):
            return
        painted = [found[one] for one in self.inputs(node) if one in found]
        if operation.collective is not None:
            # Its result may have been looked at before it came.
            found.update([(node, any(painted))] if painted else [])
        elif held.nonzero and painted:
            found[node] = any(painted) or operation.backward_pass is not None
        elif self._is_leaf(node, self.paint) or self.selects(node):
            found[node] = False
        elif operation.is_given and (read := self._read_before(node, found)) is not None:
            found[node] = found[read]
            self._carried[node] = read

    def _read_before(self, node: Node, found: Mapping[Node, bool]) -> Node | None:
        """The last read by Python of a number that a tensor was made of."""
        numbers = [abs(one) for one in self.operation(node).contents.values if one not in (0, 1)]
        for place in range(node.place - 1, -1, -1) if numbers else ():
            read = Node(node.rank, place)
            if self.operation(read).name in self.reading and read in found:
                sizes = [abs(one) for one in self.operation(read).contents.values if one]
                if any(is_close(one, size) for one in numbers for size in sizes):
                    return read
        return None

    def _is_leaf(self, node: Node, value: float) -> bool:
        """Whether a tensor has a value at some entries and 0 elsewhere."""
        held = self.operation(node).contents
        return held.largest == value and abs(held.total) == value * held.nonzero

    def selects(self, node: Node) -> bool:
        """Whether it is what leaves the painted token's gradient alone."""
        return self._is_leaf(node, SELECTED)

    def before(self, node: Node, entry: Entry) -> Node | None:
        """The node that a painted one has an entry from; None if it is the first.

        The first of a backward pass has it from the root of that, and not from the advantage. A
        value that is as large as what selects a gradient is one if it was made of others.
        """
        painted = [one for one in self.inputs(node) if one in self.painted]
        if not painted:
            return self._carried.get(node)

        def fit(one: Node) -> tuple[bool, bool, float]:
            size = entry.after(self.operation(one).contents).size
            return self.painted[one], is_close(size, entry.size), size

        best = max(painted, key=fit)
        number = self.operation(node).backward_pass
        root = None if number is None else self.traces[node.rank].roots.get(number)
        if self.painted[best] or root is None or Node(node.rank, root) not in self.painted:
            is_made = not self.painted.keys().isdisjoint(self.inputs(best))
            return best if is_made or not self.selects(best) else None
        return Node(node.rank, root)

    def logged(self, number: float, rank: int) -> Iterator[Node]:
        """Yield where a number that a rank logs is read, or has been made, there or elsewhere.

        Other numbers that are read come last, the latest first, and those that are read with
        others after them. A loss that is differentiated is not logged itself, but may be read.
        """
        ends = [node for node, in_gradient in self.painted.items() if not in_gradient]
        ends = sorted(ends, key=lambda node: (node.rank == rank, node.place), reverse=True)
        read = [node for node in ends if self.operation(node).name in (READ, LISTED)]
        read.sort(
            key=lambda node: (
                node.rank == rank,
                self._reads_root(node),
                self._reads_one(node),
            ),
            reverse=True,
        )
        others = [node for node in ends if node not in self.trained]
        yield from (one for one in (*read, *others) if self._holds(one, abs(number)))
        yield from read

    def _holds(self, node: Node, number: float) -> bool:
        held = self.operation(node).contents
        return any(is_close(abs(one), number) for one in (held.largest, *held.values))

    def _reads_root(self, node: Node) -> bool:
        return not self.roots.isdisjoint(self.inputs(node))

    def _reads_one(self, node: Node) -> bool:
        """Whether one number is read, and not several or one that was chosen among several."""
        names = [self.operation(one).name for one in self.inputs(node)]
        is_chosen = any(name.startswith(EXTREMES) for name in names)
        return self.operation(node).contents.size == 1 and not is_chosen

    @cached_property
    def roots(self) -> frozenset[Node]:
        """The nodes that backward passes begin with."""
        traces = enumerate(self.traces)
        return frozenset(Node(rank, root) for rank, one in traces for root in one.roots.values())

    @cached_property
    def trained(self) -> frozenset[Node]:
        """The painted nodes that backward passes begin with, and what these were made of."""
        return self.behind(self.roots, self.painted)

    @cached_property
    def before_roots(self) -> frozenset[Node]:
        """The tensors that backward passes begin with, and everything that they were made of."""
        return self.behind(self.roots, frozenset(self.nodes()))

    def behind(
        self, nodes: Iterable[Node], among: Container[Node] | None = None
    ) -> frozenset[Node]:
        """The given nodes and what they were made of, through nodes in ``among`` only."""
        found: set[Node] = set()
        waiting = [*nodes]
        while waiting:
            node = waiting.pop()
            if node not in found and (among is None or node in among):
                found.add(node)
                waiting += self.inputs(node)
        return frozenset(found)

    @property
    def ends(self) -> Iterator[Node]:
        """Yield where the adapters read a gradient that holds the token's value."""
        for rank, trace in enumerate(self.traces):
            for place in trace.gradients:
                if self.painted.get(Node(rank, place)):
                    yield Node(rank, place)
                    break
