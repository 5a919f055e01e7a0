"""The counts that a weight is made of, and their values with which it would be right.

A weight is a product of factors. Each of them is a count, or is made of counts, and had to be
another one if it alone is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.job import Operand
from conformance.findings.trace import MULTIPLYING
from conformance.tracing.counts import How, Unfolding
from conformance.tracing.graph import is_close

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.chain import Factor
    from conformance.tracing.counts import Count
    from conformance.tracing.graph import Node
    from conformance.tracing.wrong_weight import WrongWeight


class Needed(NamedTuple):
    """A count that an operation makes, or computes with, and what it had to be.

    ``needed`` is None of what was added up with others. ``depth`` is how far it is from the token's
    loss: what a divisor was made of is further away. ``factor`` is the operation that multiplies or
    divides the token's value by it.
    """

    made: Count
    needed: float | None
    user: Node
    depth: int
    operand: Operand = Operand.RESULT
    position: int = 0
    factor: Node | None = None

    @property
    def is_changed(self) -> bool:
        """Whether a wrong value is made of parts whose own count is right."""
        made = self.made
        is_right = self.needed is None or is_close(made.recounted, self.needed)
        return bool(made.parts) and is_right and not is_close(made.recounted, made.value)

    @property
    def node(self) -> Node:
        """The operation that makes it, or else computes with it."""
        is_made = self.operand is Operand.RESULT and self.made.node is not None
        return self.made.node if is_made and self.made.node is not None else self.user


def all_needed(weight: WrongWeight) -> Iterator[Needed]:
    """Yield what each factor computed with, and what that was made of."""
    for depth, factor in enumerate(reversed(weight.factors)):
        if weight.operation(factor.node).name.startswith(MULTIPLYING):
            for one in _of_factor(weight, factor):
                yield one._replace(depth=one.depth + depth, factor=factor.node)


def _of_factor(weight: WrongWeight, factor: Factor) -> Iterator[Needed]:
    operation, graph = weight.operation(factor.node), weight.chain.graph
    divides = "div" in operation.name
    had = 1 / factor.value if divides else factor.value
    needed = had * weight.off if divides else had / weight.off
    unfolding = Unfolding(graph)
    for position, node in enumerate(graph.inputs(factor.node)):
        count = None if node in graph.painted else unfolding.of_value(node, had)
        if count is not None:
            yield Needed(count, needed, factor.node, 0, Operand.TENSOR, position)
            yield from made_of(count, needed, factor.node, 1)
    for position, number in enumerate(operation.numbers):
        if is_close(number, had):
            count = unfolding.number(number, factor.node)
            yield Needed(count, needed, factor.node, 0, Operand.NUMBER, position)
            yield from made_of(count, needed, factor.node, 1)


def made_of(count: Count, needed: float | None, user: Node, depth: int) -> Iterator[Needed]:
    """Yield a count and what it was made of, each with what it had to be.

    What several tensors that were added up had to be is not known of each, and a number that is
    added, such as against a division by 0, is no count.
    """
    yield Needed(count, needed, user, depth)
    are_added = count.how is How.SUM and sum(one.node is not None for one in count.parts) > 1
    is_known = needed is not None and not are_added
    for place, part in enumerate(count.parts):
        if count.how is How.SUM and part.node is None:
            continue
        of_part = count.needed(place, needed) if needed is not None and is_known else None
        if of_part is not None or not is_known:
            yield from made_of(part, of_part, count.node or user, depth + 1)
