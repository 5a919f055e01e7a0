"""Values that a line may have had to compute with for a weight to be right.

In: the trace of a wrong weight. Out: where a run can put another value in place of the line's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import Operand, Replacement
from conformance.findings.trace import MULTIPLYING
from conformance.tracing.counts import How, Unfolding
from conformance.tracing.graph import is_close
from conformance.tracing.suspects.right_counts import RightCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.expected.step_context import StepContext
    from conformance.findings.trace import Line
    from conformance.tracing.chain import Factor
    from conformance.tracing.counts import Count
    from conformance.tracing.graph import Node
    from conformance.tracing.suspects.wrong_weight import WrongWeight

NO_FACTOR = "no factor"
"""What a 1 is called, by which nothing is multiplied or divided."""

Named = dict[str, float]
"""Counts of the reference's by their names."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """At a line, a value had to be another."""

    line: Line
    had: float
    needed: float
    """What the value was in the trace, and had to be."""

    replacement: Replacement
    depth: int
    """How far the value is from the token's loss: what a divisor was made of is further away."""


class _Needed(NamedTuple):
    """What an operation computes with, and what that had to be."""

    node: Node
    had: float
    needed: float
    depth: int
    operand: Operand = Operand.RESULT
    position: int = 0


def counts_of_token(context: StepContext, place: int) -> Named:
    """What a token's weight may rightly be made of, by name."""
    return {NO_FACTOR: 1.0, **{words: value for value, words in RightCounts(context, place).named}}


def counts_of_step(context: StepContext) -> Named:
    """The counts that are the same for all tokens of a step."""
    _, firsts = np.unique(context.sample[context.expected != 0], return_index=True)
    places = np.flatnonzero(context.expected)[firsts]
    first, *others = (counts_of_token(context, int(place)) for place in places)
    return {
        name: one for name, one in first.items() if all(each.get(name) == one for each in others)
    }


def hypotheses(weight: WrongWeight, suspected: Sequence[Line]) -> list[Hypothesis]:
    """What lines had to compute with, best first.

    A factor that is left out may be anywhere, so that lines which are suspected come first, then
    the framework's own, and then those that are farthest from the loss.
    """
    counts = counts_of_token(weight.traced.context, weight.traced.place).values()
    found: dict[Replacement, Hypothesis] = {}
    for needed in _all_needed(weight):
        one = _hypothesis(weight, needed)
        if one is not None and any(is_close(value, needed.needed) for value in counts):
            found.setdefault(one.replacement, one)
    order = {line: place for place, line in reversed([*enumerate(suspected)])}
    return sorted(
        found.values(),
        key=lambda one: (
            order.get(one.line, len(order)),
            not weight.is_own(one.line),
            -one.depth,
        ),
    )


def _hypothesis(weight: WrongWeight, one: _Needed) -> Hypothesis | None:
    operation = weight.operation(one.node)
    if operation.line is None:
        return None
    replacement = Replacement(
        file=operation.line.file,
        line=operation.line.number,
        columns=operation.line.columns,
        operation=operation.name,
        operand=one.operand,
        position=one.position,
    )
    return Hypothesis(
        line=operation.line,
        had=one.had,
        needed=one.needed,
        replacement=replacement,
        depth=one.depth,
    )


def _all_needed(weight: WrongWeight) -> Iterator[_Needed]:
    """Yield what each factor computed with, and what that was made of."""
    for depth, factor in enumerate(reversed(weight.factors)):
        if weight.operation(factor.node).name.startswith(MULTIPLYING):
            for one in _of_factor(weight, factor):
                yield one._replace(depth=one.depth + depth)


def _of_factor(weight: WrongWeight, factor: Factor) -> Iterator[_Needed]:
    operation, graph = weight.operation(factor.node), weight.chain.graph
    divides = "div" in operation.name
    had = 1 / factor.value if divides else factor.value
    needed = had * weight.off if divides else had / weight.off
    unfolding = Unfolding(graph)
    for position, node in enumerate(graph.inputs(factor.node)):
        count = None if node in graph.painted else unfolding.of_value(node, had)
        if count is not None:
            yield _Needed(factor.node, had, needed, 0, Operand.TENSOR, position)
            yield from _made_of(count, needed, 1)
    for position, number in enumerate(operation.numbers):
        if is_close(number, had):
            yield _Needed(factor.node, had, needed, 0, Operand.NUMBER, position)
            yield from _made_of(unfolding.number(number, factor.node), needed, 1)


def _made_of(count: Count, needed: float, depth: int) -> Iterator[_Needed]:
    """Yield a count and what it was made of, each with what it had to be.

    Of several tensors that were added up none alone had to be another.
    """
    if count.node is not None and count.at is not None:
        yield _Needed(count.node, count.value, needed, depth)
    if count.how is How.SUM and sum(one.node is not None for one in count.parts) > 1:
        return
    for place, part in enumerate(count.parts):
        of_part = count.needed(place, needed)
        if of_part is not None:
            yield from _made_of(part, of_part, depth + 1)
