"""The factors from a token's loss to its weight, in the order in which they are applied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import MULTIPLYING
from conformance.tracing.graph import NEGLIGIBLE, Entry, is_close

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.findings.trace import Operation
    from conformance.tracing.graph import Graph, Node


SUMMING = ("aten.sum", "aten.mean", "aten.dot", "jax.reduce_sum", "jax.dot_general")
"""Name prefixes of operations that sum entries."""


class Factor(NamedTuple):
    """An operation that multiplies the token's value, perhaps by 1."""

    node: Node
    before: float
    after: float

    @property
    def value(self) -> float:
        """The number by which the operation multiplies the token's value."""
        return self.after / self.before

    @property
    def is_idle(self) -> bool:
        """Whether the operation multiplies by 1."""
        return abs(self.value - 1) <= NEGLIGIBLE


@dataclass(frozen=True, eq=False)
class Chain:
    """The nodes and factors from a token's advantage to the gradient that the optimizer gets."""

    graph: Graph
    way: tuple[Node, ...]
    factors: tuple[Factor, ...]

    @property
    def product(self) -> float:
        """The product of the factors, which is the token's weight."""
        return math.prod(factor.value for factor in self.factors)

    def operation(self, factor: Factor) -> Operation:
        """The operation of a factor."""
        return self.graph.operation(factor.node)

    def operands(self, factor: Factor) -> list[Node]:
        """The tensors by which the token's value was multiplied or divided."""
        inputs = self.graph.inputs(factor.node)
        return [one for one in inputs if one not in self.graph.painted]


def chain(
    graph: Graph, end: Node, gradient_unit: float = 1.0, number: float | None = None
) -> Chain:
    """The chain that ends in a node which holds the token's value.

    Values in a gradient are divided by ``gradient_unit``, the gradient of a loss of 1. ``number``
    is the entry of the node that the chain ends in, if the node has several entries.
    """
    way, entry = [end], Entry(number or 0.0).after(graph.operation(end).contents)
    while (before := graph.before(way[-1], entry)) is not None:
        way.append(before)
        entry = entry.after(graph.operation(before).contents)
    way = [one for one in reversed(way) if graph.operation(one).contents.nonzero]
    return Chain(graph, tuple(way), tuple(_factors(graph, way, gradient_unit)))


def _factors(graph: Graph, way: Sequence[Node], gradient_unit: float) -> list[Factor]:
    """The factors of a way, except those that cancel each other within a backward pass.

    Such factors occur where a backward pass splits a value and adds the parts up again, as for the
    maximum of two equal losses.
    """
    values = _values(graph, way, gradient_unit)
    steps = [
        Factor(node, before, after)
        for node, before, after in zip(way[1:], values, values[1:], strict=False)
    ]
    steps = [_at_its_operation(graph, one) for one in steps]
    kept = [one for one in steps if not one.is_idle or _multiplies(graph, one)]
    is_backward = [graph.operation(one.node).backward_pass is not None for one in kept]
    start = next((n for n, backward in enumerate(is_backward) if backward), len(kept))
    end, product = start, 1.0
    for place in range(start, len(kept)):
        if not is_backward[place]:
            break
        product *= kept[place].value
        if abs(product - 1) <= NEGLIGIBLE:
            end = place + 1
    return [*kept[:start], *kept[end:]]


def _values(graph: Graph, way: Sequence[Node], gradient_unit: float) -> list[float]:
    """The value of one token in each node.

    An advantage of a whole sample paints all of its tokens. Until a backward pass separates them, a
    sum over the tokens is divided by their number.
    """
    values: list[float] = []
    summed, several = 1.0, 1
    entry = Entry(0.0)
    for node in way:
        operation = graph.operation(node)
        held = operation.contents
        after = entry.after(held)
        if operation.backward_pass is not None:
            summed = 1.0
        elif operation.name.startswith(SUMMING) and not is_close(after.size, entry.size):
            summed *= max(several / held.nonzero, 1.0)
        several, entry = held.nonzero, after
        unit = gradient_unit if graph.painted[node] else 1.0
        values.append(entry.size / summed / unit)
    return values


def _at_its_operation(graph: Graph, factor: Factor) -> Factor:
    """The factor, moved to the unpainted operation of the backward pass that multiplied by it.

    A gradient is not painted before it is multiplied by the advantage: until then it is the
    gradient of all tokens.
    """
    operation = graph.operation(factor.node)
    number = operation.backward_pass
    if factor.is_idle or number is None or operation.collective is not None:
        return factor
    waiting, seen = [*graph.inputs(factor.node)], {factor.node}
    while waiting:
        node = waiting.pop()
        operation = graph.operation(node)
        if node in seen or node in graph.painted or operation.backward_pass != number:
            continue
        seen.add(node)
        waiting += (inputs := graph.inputs(node))
        sizes = [graph.operation(one).contents.largest for one in inputs]
        if any(
            size and is_close(operation.contents.largest / size, factor.value) for size in sizes
        ):
            return factor._replace(node=node)
    return factor


def _multiplies(graph: Graph, factor: Factor) -> bool:
    """Whether a factor of 1 is a forward multiplication, by a number or a tensor of ones."""
    operation = graph.operation(factor.node)
    return operation.name.startswith(MULTIPLYING) and operation.backward_pass is None
