"""The lines to look at for a wrong weight, best first: suspects, of which none is said to be it.

Where the weight is off by a number of ranks or micro-batches, a factor may lack its partner. Else a
count that it was divided by is another than the reference's: what that was made of is gone
through, down to where its parts still were right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from conformance.tracing.counts import Count, How, Unfolding
from conformance.tracing.graph import Node, is_close
from conformance.tracing.origins import origins
from conformance.tracing.right_counts import RightCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.graph import Graph
    from conformance.tracing.tracer import TracedJob

MOST = 3
"""How many suspects are named."""

CONSTANTS = ("aten.ones.", "aten.new_ones", "aten.full.", "aten.new_full")
"""Operations whose entries come from no mask."""


class Why(IntEnum):
    """How much a reason to suspect a line says, the least first."""

    CONSEQUENCE = 0
    IDLE_TENSOR = 1
    ORIGIN = 2
    AVERAGED = 3
    COUNTED = 4
    ASSIGNED = 5
    IDLE = 6
    WITHOUT_PARTNER = 7
    SIZE = 8
    UNUSED = 9
    CHANGED = 10


@dataclass(frozen=True)
class Suspect:
    """A line to look at, and why."""

    line: Line
    why: str


class _Ranked(NamedTuple):
    """A suspect with what ranks it: of one reason the deepest, or nearest, comes first."""

    why: Why
    depth: int
    suspect: Suspect


class _Wrong(NamedTuple):
    """A count that had to be another for the weight to be right, and what it is a part of."""

    made: Count
    needed: float
    user: Node
    depth: int


@dataclass(frozen=True, eq=False)
class Suspects:
    """Looks for the lines that may have made the weight of a traced token wrong."""

    traced: TracedJob
    chain: Chain
    package: str | None
    """That of the framework, whose lines are suspected before those of its engine."""

    def best(self) -> list[Suspect]:
        """At most three suspects, the likeliest first."""
        by_line: dict[tuple[str, int], Suspect] = {}
        for one in sorted(self._all(), key=self._rank, reverse=True):
            by_line.setdefault((one.suspect.line.file, one.suspect.line.number), one.suspect)
        return [*by_line.values()][:MOST]

    def _rank(self, one: _Ranked) -> tuple[bool, Why, int]:
        own = self.package is None or f"/{self.package}/" in one.suspect.line.file
        return own, one.why, one.depth

    def _all(self) -> Iterator[_Ranked]:
        if not self.traced.observed or not self.traced.expected:
            return
        for factor in self.chain.factors:
            yield from self._of_factor(factor)
            found = [one for wrong in self._wrong_counts(factor) for one in self._of_count(wrong)]
            deepest = max((one.depth for one in found if one.why is Why.COUNTED), default=0)
            for one in found:
                is_consequence = one.why is Why.COUNTED and one.depth < deepest
                yield one._replace(why=Why.CONSEQUENCE) if is_consequence else one

    @cached_property
    def _right(self) -> RightCounts:
        return RightCounts(self.traced.context, self.traced.place)

    @cached_property
    def _off(self) -> float:
        """What the right weight is multiplied by."""
        return self.traced.observed / self.traced.expected

    def _operation(self, node: Node) -> Operation:
        return self.chain.graph.operation(node)

    def _of_factor(self, factor: Factor) -> Iterator[_Ranked]:
        """Yield the line of a factor that lacks a partner, or is 1 and may be the partner."""
        operation = self.chain.operation(factor)
        if factor.is_idle and self._right.factor(self._off) is not None:
            sizes = [self._operation(one).contents.size for one in self.chain.operands(factor)]
            words = f"multiplies by 1 where the weight lacks a factor of {1 / self._off:.6g}"
            if max(sizes, default=1) == 1:
                why = Why.IDLE if 1.0 in operation.numbers else Why.IDLE_TENSOR
                yield from self._at(factor.node, why, 0, words)
        if not factor.is_idle and is_close(factor.value, self._off) and not self._partner(factor):
            words = f"multiplies by {self._off:.6g}, which is what the weight is off by"
            averages = operation.collective is not None or operation.backward_pass is not None
            why = Why.AVERAGED if averages else Why.WITHOUT_PARTNER
            yield from self._at(factor.node, why, 0, words)

    def _partner(self, factor: Factor) -> bool:
        """Whether another factor takes back what one does."""
        return any(is_close(one.value * factor.value, 1) for one in self.chain.factors)

    def _wrong_counts(self, factor: Factor) -> Iterator[_Wrong]:
        """Yield the counts that a factor is made of, each with what it had to be.

        Where nothing was divided by the tokens of a unit, a divisor of 1 had to be these.
        """
        if factor.is_idle and not self._may_lack_tokens(factor):
            return
        unfolding, operation = Unfolding(self.chain.graph), self.chain.operation(factor)
        for value, needed in (
            (1 / factor.value, self._off / factor.value),
            (factor.value, factor.value / self._off),
        ):
            found = [unfolding.of_value(one, value) for one in self.chain.operands(factor)]
            numbers = [one for one in operation.numbers if is_close(one, value)]
            found += [unfolding.number(one, factor.node) for one in numbers]
            for count in found:
                if count is not None:
                    yield from self._below(_Wrong(count, needed, factor.node, 0))
            if factor.is_idle:
                return

    def _may_lack_tokens(self, factor: Factor) -> bool:
        divides = ".div" in self.chain.operation(factor).name and self.chain.operands(factor)
        present = any(is_close(one.value * self._right.tokens, 1) for one in self.chain.factors)
        return bool(divides) and is_close(self._off, self._right.tokens) and not present

    def _below(self, wrong: _Wrong) -> Iterator[_Wrong]:
        """Yield a count and the parts of it that had to be others."""
        if is_close(wrong.made.value, wrong.needed):
            return
        yield wrong
        user = wrong.made.node or wrong.user
        for place, part in enumerate(wrong.made.parts):
            needed = wrong.made.needed(place, wrong.needed)
            if needed is not None and math.isfinite(needed):
                yield from self._below(_Wrong(part, needed, user, wrong.depth + 1))

    def _of_count(self, wrong: _Wrong) -> Iterator[_Ranked]:
        """Yield the lines to look at because of one count that had to be another."""
        count, needed = wrong.made, self._right.needed(wrong.needed)
        if count.node is None and self._right.is_size(count.value):
            needed = needed or self._right.factor(wrong.needed)
        if needed is None or self._right.ingredient(count.value) is not None:
            return
        words = f"{count.value:.6g} where there are {wrong.needed:.6g} {needed}"
        if is_close(self._recounted(count), wrong.needed):
            for inner in self._deepest_changed(count):
                made = f"makes {inner.value:.6g} of {self._recounted(inner):.6g}"
                yield from self._at(inner.node, Why.CHANGED, wrong.depth, f"{made}: {words}")
        if count.node is None:
            yield from self._of_number(wrong, words)
            return
        for node in self._unused(count.node, wrong.needed):
            yield from self._at(node, Why.UNUSED, 0, f"counts right, but nothing uses it: {words}")
        if self._operation(count.node).contents.size == 1 or not self._is_part(count):
            yield from self._at(count.node, Why.COUNTED, wrong.depth, words)

    def _of_number(self, wrong: _Wrong, words: str) -> Iterator[_Ranked]:
        """Yield the line that computes with a number of Python, and those that assigned it."""
        number, operation = wrong.made.value, self._operation(wrong.user)
        is_size = self._right.is_size(number) and self._right.factor(wrong.needed) is not None
        yield from self._at(wrong.user, Why.SIZE if is_size else Why.COUNTED, wrong.depth, words)
        names = [name for name, held in operation.variables if is_close(held, number)]
        why = Why.ASSIGNED if names else Why.ORIGIN
        for place, line in enumerate(origins(operation.stack, names)):
            yield _Ranked(why, -place, Suspect(line, words))

    def _at(self, node: Node | None, why: Why, depth: int, words: str) -> Iterator[_Ranked]:
        line = None if node is None else self._operation(node).line
        if line is not None:
            yield _Ranked(why, depth, Suspect(line, words))

    def _is_part(self, count: Count) -> bool:
        """Whether it is the mask of a part of the step, which is right for that part."""
        return self._right.part(count.value) is not None

    def _unused(self, node: Node, needed: float) -> Iterator[Node]:
        """Yield the collectives that make what a count had to be of the same tensor."""
        graph = self.chain.graph
        sources = {node, *graph.inputs(node)}
        for place, operation in enumerate(graph.traces[node.rank].operations):
            other = Node(node.rank, place)
            if operation.collective is None or other in self._counted:
                continue
            if any(is_close(one, needed) for one in operation.contents.values):
                read = [Node(node.rank, one) for one in operation.inputs]
                if sources & {*read, *(n for one in read for n in graph.inputs(one))}:
                    yield other

    @cached_property
    def _counted(self) -> frozenset[Node]:
        """All nodes that the token's weight depends on."""
        found: set[Node] = set()
        waiting = [factor.node for factor in self.chain.factors]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self.chain.graph.inputs(node)
        return frozenset(found)

    def _recounted(self, count: Count) -> float:
        """What a count is without clamps, and without entries that come from no mask."""
        parts = [self._recounted(part) for part in count.parts]
        shares = [*zip(parts, count.shares, strict=False)]
        match count.how:
            case How.SAME | How.CLAMP:
                return parts[0]
            case How.SUM:
                return math.fsum(part * share for part, share in shares)
            case How.PRODUCT if all(parts):
                return math.prod(float(part**share) for part, share in shares)
            case How.GIVEN if count.node is not None:
                name = self._operation(count.node).name
                return 0.0 if name.startswith(CONSTANTS) else count.value
        return count.value

    def _deepest_changed(self, count: Count) -> Iterator[Count]:
        """Yield the counts that are not what they are made of, whose parts all are."""
        for one in count.walk():
            is_same = is_close(self._recounted(one), one.value)
            if one.parts and not is_same and not any(map(self._is_changed, one.parts)):
                yield one

    def _is_changed(self, count: Count) -> bool:
        return bool(count.parts) and not is_close(self._recounted(count), count.value)


def suspects_of_loss(graph: Graph) -> list[Suspect]:
    """The lines after which a token's value is nowhere: of its gradient, if it has any."""
    painted = graph.painted.items()
    last = {in_gradient: node for node, in_gradient in sorted(painted)}
    ends = [last[one] for one in (True, False) if one in last]
    readers = [
        Node(end.rank, place)
        for end in ends
        for place, operation in enumerate(graph.traces[end.rank].operations)
        if end.place in operation.inputs
    ]
    words = "the token's value is not found behind it"
    lines = [graph.operation(node).line for node in [*readers, *ends]]
    return [Suspect(line, words) for line in dict.fromkeys(lines) if line is not None][:MOST]
