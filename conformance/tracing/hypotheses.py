"""Values that a line may have had to compute with for a weight to be right.

In: the trace of a wrong weight. Out: where a run can put another value in place of the line's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import Operand, Replacement
from conformance.findings.trace import BUILT, GIVEN, LISTED, MULTIPLYING, OUTSIDE
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

UNSEEN = (GIVEN, OUTSIDE, BUILT, LISTED)
"""What is no operation of torch, so that no run can change what it makes."""

COPYING = ("aten.empty", "c10d.allgather", "c10d.broadcast")
"""Operations that make no value. Wrappers of models ask for them too, and compare what they got."""

Named = dict[str, float]
"""Counts of the reference's by their names."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """At a line, a value had to be another."""

    line: Line
    had: float
    needed: float | None
    """What the value was in the trace, and had to be; None if others are added to it."""

    replacement: Replacement
    depth: int
    """How far the value is from the token's loss: what a divisor was made of is further away."""

    mask: Replacement | None = None
    """Of a mask, where the loss is multiplied by it."""


class _Needed(NamedTuple):
    """What an operation computes with, and what that had to be."""

    node: Node
    had: float
    needed: float | None
    depth: int
    operand: Operand = Operand.RESULT
    position: int = 0


@lru_cache(maxsize=4096)
def counts_of_token(context: StepContext, place: int) -> Named:
    """What a token's weight may rightly be made of, by name."""
    return {NO_FACTOR: 1.0, **{words: value for value, words in RightCounts(context, place).named}}


def counts_of_step(context: StepContext) -> Named:
    """The counts that are the same for all tokens of a step."""
    _, firsts = np.unique(context.sample[context.expected != 0], return_index=True)
    places = np.flatnonzero(context.expected)[firsts]
    several = [counts_of_token(context, int(place)) for place in places]
    return {
        name: count
        for name, count in (several[0] if several else {}).items()
        if all(each.get(name) == count for each in several)
    }


def hypotheses(weight: WrongWeight, suspected: Sequence[Line]) -> list[Hypothesis]:
    """What lines had to compute with, best first.

    A factor that is left out may be anywhere, so that lines which are suspected come first, then
    the framework's own, and then those that are farthest from the loss.
    """
    several = _of_counts(weight) if weight.traced.expected else _of_masks(weight)
    found: dict[Replacement, Hypothesis] = {}
    for one in several:
        found.setdefault(one.replacement, one)
    order = {line: place for place, line in reversed([*enumerate(suspected)])}
    return sorted(
        found.values(),
        key=lambda one: (
            order.get(one.line, len(order)),
            one.needed is None,
            not weight.is_own(one.line),
            -one.depth,
        ),
    )


def _of_counts(weight: WrongWeight) -> Iterator[Hypothesis]:
    counts = counts_of_token(weight.traced.context, weight.traced.place).values()
    for needed in _all_needed(weight):
        is_count = needed.needed is None or any(is_close(value, needed.needed) for value in counts)
        if is_count and not _is_mask(weight, _replaced(weight, needed)):
            yield from _hypothesis(weight, needed)


def _of_masks(weight: WrongWeight) -> Iterator[Hypothesis]:
    """Yield the masks by which the loss of a masked token is multiplied, and what made them."""
    graph = weight.chain.graph
    others = frozenset(graph.nodes()) - graph.painted.keys()
    for depth, factor in enumerate(reversed(weight.factors)):
        if not weight.operation(factor.node).name.startswith(MULTIPLYING):
            continue
        for position, mask in enumerate(graph.inputs(factor.node)):
            if mask in graph.painted or not _is_mask(weight, mask):
                continue
            operand = _Needed(factor.node, 1.0, 0.0, depth, Operand.TENSOR, position)
            for multiplied in _hypothesis(weight, operand):
                yield replace(multiplied, mask=multiplied.replacement)
                size = weight.operation(mask).contents.size
                for node in graph.behind([mask], others):
                    is_alike = weight.operation(node).contents.size == size
                    made = _Needed(node, 1.0, 0.0, depth + mask.place - node.place + 1)
                    if is_alike and weight.operation(node).inputs and _is_mask(weight, node):
                        for one in _hypothesis(weight, made):
                            yield replace(one, mask=multiplied.replacement)


def _hypothesis(weight: WrongWeight, one: _Needed) -> Iterator[Hypothesis]:
    """Yield a hypothesis, if a line has asked for the operation.

    It is about the line that calls its function if others do so too, and are right.
    """
    operation = weight.operation(one.node)
    if operation.line is None or operation.name in UNSEEN or operation.name.startswith(COPYING):
        return
    line, *callers = operation.stack
    is_shared = len(weight.callers_of[line]) > 1
    replacement = Replacement(
        file=line.file,
        line=line.number,
        columns=line.columns,
        operation=operation.name,
        operand=one.operand,
        position=one.position,
        caller=(callers[0].file, callers[0].number) if is_shared else None,
    )
    yield Hypothesis(
        line=callers[0] if is_shared else line,
        had=one.had,
        needed=one.needed,
        replacement=replacement,
        depth=one.depth,
    )


def _replaced(weight: WrongWeight, one: _Needed) -> Node:
    """What has the value that had to be another."""
    is_operand = one.operand is Operand.TENSOR
    return weight.chain.graph.inputs(one.node)[one.position] if is_operand else one.node


def _is_mask(weight: WrongWeight, node: Node) -> bool:
    """Whether a tensor has several entries, all of them 0 or 1."""
    held = weight.operation(node).contents
    return held.size > 1 and held.largest == 1 and held.total == held.nonzero


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


def _made_of(count: Count, needed: float | None, depth: int) -> Iterator[_Needed]:
    """Yield a count and what it was made of, each with what it had to be.

    What several tensors that were added up had to be is not known of each.
    """
    if count.node is not None and count.at is not None:
        yield _Needed(count.node, count.value, needed, depth)
    are_added = count.how is How.SUM and sum(one.node is not None for one in count.parts) > 1
    is_known = needed is not None and not are_added
    for place, part in enumerate(count.parts):
        of_part = count.needed(place, needed) if needed is not None and is_known else None
        if of_part is not None or not is_known:
            yield from _made_of(part, of_part, depth + 1)
