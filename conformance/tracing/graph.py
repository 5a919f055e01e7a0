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
"""Name prefixes of operations whose results hold old bytes, or nothing of their operands."""

MOVING = tuple(
    f"aten.{name}"
    for name in ("slice", "select", "narrow", "index", "roll", "constant_pad", "flip")
)
"""Name prefixes of operations that move entries, and of their derivatives."""

EXTREMES = ("aten.max.", "aten.min.", "aten.amax.", "aten.amin.", "aten.median.")
"""Name prefixes of operations that choose one of many entries."""

NEGLIGIBLE = 1e-6
"""The largest distance from 1 of a factor that counts as 1: a few roundings in float32."""


def is_close(one: float, other: float) -> bool:
    """Whether two numbers are equal up to float32 rounding."""
    return math.isclose(one, other, rel_tol=NEGLIGIBLE, abs_tol=1e-12)


def is_of_count(factor: float) -> bool:
    """Whether a factor or its reciprocal is an integer; a factor that is not finite is not."""
    return math.isfinite(factor) and any(is_close(one, round(one)) for one in (factor, 1 / factor))


class Node(NamedTuple):
    """An operation, given by its rank and its place among the rank's operations."""

    rank: int
    place: int


class Entry(NamedTuple):
    """The size of the token's value in a tensor and, if the tensor is small, the entry's place."""

    size: float
    place: int | None = None
    entries: int = 0

    def after(self, held: Contents) -> Entry:
        """The entry in the next tensor: at the same place, else of equal size, else the largest."""
        sizes = [abs(one) for one in held.values]
        if self.place is not None and len(sizes) == self.entries and sizes[self.place]:
            return Entry(sizes[self.place], self.place, self.entries)
        equal = (place for place, size in enumerate(sizes) if size and is_close(size, self.size))
        place = next(equal, sizes.index(held.largest) if held.largest in sizes else None)
        return Entry(held.largest if place is None else sizes[place], place, len(sizes))


@dataclass(frozen=True, eq=False)
class Graph:
    """The operations of all ranks, with the inputs of each."""

    traces: Sequence[RankTrace]

    paint: float = PAINT
    """The size of the painted token's value in its column."""

    reading: tuple[str, ...] = (READ,)
    """Names of operations by which Python reads numbers; it may make tensors of them later."""

    _carried: dict[Node, Node] = field(default_factory=dict)
    """For each painted tensor that Python made of numbers, the operation that read the numbers."""

    def operation(self, node: Node) -> Operation:
        """The operation of a node."""
        return self.traces[node.rank].operations[node.place]

    def inputs(self, node: Node) -> list[Node]:
        """The inputs of an operation; for a collective, those of all ranks of its group."""
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
        """The operations, on the same rank, that read the result of an operation."""
        operations = enumerate(self.traces[node.rank].operations)
        return [Node(node.rank, place) for place, one in operations if node.place in one.inputs]

    @cached_property
    def callers_of(self) -> dict[Line, set[Line]]:
        """For each line that called an operation, the lines that called the line's function."""
        found: dict[Line, set[Line]] = defaultdict(set)
        for trace in self.traces:
            for operation in trace.operations:
                for line, caller in pairwise(operation.stack[:2]):
                    found[line].add(caller)
        return found

    @cached_property
    def painted(self) -> dict[Node, bool]:
        """The nodes that hold the token's value, each with whether it is in a gradient.

        All nodes are visited again until a visit adds no node, as collectives join later ranks.
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
        """Whether a tensor holds the token's original value and nothing else."""
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
            # The result may have been recorded before it arrived, so its entries show nothing.
            found.update([(node, any(painted))] if painted else [])
        elif held.nonzero and painted:
            found[node] = any(painted) or operation.backward_pass is not None
        elif self._is_leaf(node, self.paint) or self.selects(node):
            found[node] = False
        elif operation.is_given and (read := self._read_before(node, found)) is not None:
            found[node] = found[read]
            self._carried[node] = read

    def _read_before(self, node: Node, found: Mapping[Node, bool]) -> Node | None:
        """The last operation by which Python read a number that a tensor was made of."""
        numbers = [abs(one) for one in self.operation(node).contents.values if one not in (0, 1)]
        for place in range(node.place - 1, -1, -1) if numbers else ():
            read = Node(node.rank, place)
            if self.operation(read).name in self.reading and read in found:
                sizes = [abs(one) for one in self.operation(read).contents.values if one]
                if any(is_close(one, size) for one in numbers for size in sizes):
                    return read
        return None

    def _is_leaf(self, node: Node, value: float) -> bool:
        """Whether each entry of a tensor is either a given value or 0."""
        held = self.operation(node).contents
        return held.largest == value and abs(held.total) == value * held.nonzero

    def selects(self, node: Node) -> bool:
        """Whether a tensor is the mask that selects the painted token's gradient."""
        return self._is_leaf(node, SELECTED)

    def before(self, node: Node, entry: Entry) -> Node | None:
        """The node from which a painted node has an entry; None if the node is the first.

        The first node of a backward pass has its entry from the root of the pass, not from the
        advantage. A tensor that looks like the mask which selects a gradient is a predecessor only
        if it was computed from painted nodes.
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
        """Yield the nodes that may be a number that a rank logs, the likeliest first.

        Nodes that hold the number come first: nodes that Python reads, then other nodes except
        those of the differentiated loss. Last come all nodes that Python reads. Reads on the rank
        that logs precede reads elsewhere, and reads of a single number precede those of several.
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
        """Whether a node reads a single number that was not chosen among several."""
        names = [self.operation(one).name for one in self.inputs(node)]
        is_chosen = any(name.startswith(EXTREMES) for name in names)
        return self.operation(node).contents.size == 1 and not is_chosen

    @cached_property
    def roots(self) -> frozenset[Node]:
        """The roots of all backward passes."""
        traces = enumerate(self.traces)
        return frozenset(Node(rank, root) for rank, one in traces for root in one.roots.values())

    @cached_property
    def trained(self) -> frozenset[Node]:
        """The painted roots of backward passes, and all painted nodes that they depend on."""
        return self.behind(self.roots, self.painted)

    @cached_property
    def before_roots(self) -> frozenset[Node]:
        """The roots of backward passes, and all nodes that they depend on."""
        return self.behind(self.roots, frozenset(self.nodes()))

    def behind(
        self, nodes: Iterable[Node], among: Container[Node] | None = None
    ) -> frozenset[Node]:
        """The given nodes and all nodes that they depend on, through nodes in ``among`` only."""
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
        """Yield, for each rank, the first gradient with the token's value that adapters read."""
        for rank, trace in enumerate(self.traces):
            for place in trace.gradients:
                if self.painted.get(Node(rank, place)):
                    yield Node(rank, place)
                    break
