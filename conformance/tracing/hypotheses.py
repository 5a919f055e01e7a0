"""Values that a line may have had to compute with for a weight to be right.

In: the trace of a wrong weight. Out: where a run can put another value in place of the line's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract.job import Operand, Replacement
from conformance.findings.trace import BUILT, GIVEN, LISTED, MULTIPLYING, OUTSIDE, READ
from conformance.tracing.counts import Count
from conformance.tracing.graph import is_close
from conformance.tracing.needed import Needed, all_needed
from conformance.tracing.right_counts import counts_of_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line
    from conformance.tracing.graph import Node
    from conformance.tracing.wrong_weight import WrongWeight

UNSEEN = (GIVEN, OUTSIDE, BUILT, LISTED)
"""Nodes that are no operations of torch, so that no run can change what they make."""

GATHERING = ("c10d.allgather", "c10d.broadcast")
"""Operations by which wrappers of models compare these over ranks, at the line that wraps one."""

COPYING = ("aten.empty", *GATHERING)
"""Operations that make no value."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """At a line, a value had to be another."""

    line: Line
    had: float
    needed: float | None
    """The value in the trace, and the needed one; None if others are added to it."""

    replacement: Replacement
    depth: int
    """The distance of the value from the token's loss: parts of a divisor are further away."""

    mask: Replacement | None = None
    """The place where the loss is multiplied by a mask."""


def hypotheses(weight: WrongWeight, suspected: Sequence[Line]) -> list[Hypothesis]:
    """Hypotheses on the values that lines had to compute with, best first.

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
    for needed in all_needed(weight):
        is_made = needed.made.node is not None and needed.made.at is not None
        is_seen = is_made or needed.operand is not Operand.RESULT
        is_count = needed.needed is None or any(is_close(value, needed.needed) for value in counts)
        if is_seen and is_count and not _is_mask(weight, _replaced(weight, needed)):
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
            held = Count(1.0, factor.node)
            operand = Needed(held, 0.0, factor.node, depth, Operand.TENSOR, position)
            for multiplied in _hypothesis(weight, operand):
                yield replace(multiplied, mask=multiplied.replacement)
                size = weight.operation(mask).contents.size
                for node in graph.behind([mask], others):
                    is_alike = weight.operation(node).contents.size == size
                    deep = depth + mask.place - node.place + 1
                    made = Needed(Count(1.0, node), 0.0, node, deep)
                    if is_alike and weight.operation(node).inputs and _is_mask(weight, node):
                        for one in _hypothesis(weight, made):
                            yield replace(one, mask=multiplied.replacement)


def _hypothesis(weight: WrongWeight, one: Needed) -> Iterator[Hypothesis]:
    """Yield a hypothesis, if a line has asked for the operation.

    It is about the line that calls its function if others do so too, and are right.
    """
    operation = weight.operation(one.node)
    if operation.line is None or operation.name in UNSEEN or operation.name.startswith(COPYING):
        return
    if operation.name == READ and operation.line in weight.lines_of(GATHERING):
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
        had=one.made.value,
        needed=one.needed,
        replacement=replacement,
        depth=one.depth,
    )


def _replaced(weight: WrongWeight, one: Needed) -> Node:
    """The operand or result whose value had to be another."""
    is_operand = one.operand is Operand.TENSOR
    return weight.chain.graph.inputs(one.node)[one.position] if is_operand else one.node


def _is_mask(weight: WrongWeight, node: Node) -> bool:
    """Whether a tensor has several entries, all of them 0 or 1."""
    held = weight.operation(node).contents
    return held.size > 1 and held.largest == 1 and held.total == held.nonzero
