"""The counts that a weight is made of, each with the value that would make the weight right.

A weight is a product of factors, and each factor is a count or is made of counts. The needed value
of a count assumes that all other counts are right.
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
    """A count that an operation makes or uses, with its needed value.

    ``needed`` is None for a count that was added to other counts. ``depth`` is the distance from
    the token's loss: the parts of a divisor are farther away than the divisor. ``factor`` is the
    operation that multiplies or divides the token's value by the count.
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
        """Whether the count is wrong, although its parts add up to the needed value."""
        made = self.made
        is_right = self.needed is None or is_close(made.recounted, self.needed)
        return bool(made.parts) and is_right and not is_close(made.recounted, made.value)

    @property
    def node(self) -> Node:
        """The operation that makes the count, or else the operation that uses it."""
        is_made = self.operand is Operand.RESULT and self.made.node is not None
        return self.made.node if is_made and self.made.node is not None else self.user


def all_needed(weight: WrongWeight) -> Iterator[Needed]:
    """Yield the count in each factor, followed by the counts that it was made of."""
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
    """Yield a count and all counts that it was made of, each with its needed value.

    If tensors were added up, their needed values are unknown. A number that is added, such as an
    epsilon against division by 0, is not a count.
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
