"""Hypotheses that a line used a wrong value, and that another value makes the weight right.

The input is the trace of a wrong weight; the output is the values that a run can replace.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract.job import Operand, Replacement
from conformance.findings.trace import (
    BUILT,
    GIVEN,
    LIFTED,
    LISTED,
    OUTSIDE,
    READ,
)
from conformance.tracing.graph import Node, is_close
from conformance.tracing.needed import Needed, all_needed
from conformance.tracing.right_counts import counts_with_parts
from conformance.tracing.source import scope_of
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.graph import Graph
    from conformance.tracing.trace import Trace
    from conformance.tracing.wrong_weight import WrongWeight

UNSEEN = (GIVEN, OUTSIDE, BUILT, LISTED)
"""Nodes that are not operations of torch, so that no run can change their results."""

GATHERING = ("c10d.allgather", "c10d.broadcast")
"""Operations by which model wrappers compare models over ranks, at the line that wraps a model."""

COPYING = ("aten.empty", *GATHERING)
"""Name prefixes of operations that compute no value."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """The hypothesis that a line computed with a wrong value."""

    line: Line
    replacement: Replacement
    node: Node
    """The operation whose value is replaced."""

    had: float = 0.0
    needed: float | None = None
    """The value that should replace ``had``, the traced value; None if it was added to others."""

    depth: int = 0
    """The distance of the value from the token's loss: parts of a divisor are further away."""

    factor: Node | None = None
    """The operation that multiplies or divides the token's value by the replaced value."""

    is_handed: bool = False
    """Whether the line only reads a Python number by a name, so that another line may be wrong."""

    reason: str = ""
    """The reason, in words, to blame the line rather than the line whose value is replaced."""

    def is_made_of(self, other: Hypothesis, graph: Graph) -> bool:
        """Whether this value depends on the other, perhaps through Python, or has the same line."""
        if self.line == other.line:
            return True
        if self.factor is not None and self.factor == other.factor:
            return self.depth < other.depth
        return other.node in graph.behind([self.node])

    def is_of_all(self, other: Hypothesis) -> bool:
        """Whether this is about a line for all of its callers, and the other for one of them."""
        caller = other.replacement.caller
        return caller is not None and replace(self.replacement, caller=caller) == other.replacement


def hypotheses(trace: Trace) -> list[Hypothesis]:
    """Hypotheses on the counts that lines should have used, best first.

    A missing factor may belong to any line, so suspected lines come first, then the framework's own
    lines, then the lines farthest from the loss. There are no hypotheses if the token is lost or
    must be masked, since no count is wrong then.
    """
    weight = trace.weight
    if weight is None or not (trace.job.expected and trace.job.observed):
        return []
    suspected = [one.line for one in trace.suspects]
    order = {line: place for place, line in reversed([*enumerate(suspected)])}
    return sorted(
        _distinct(_counted(weight)),
        key=lambda one: (
            order.get(one.line, len(order)),
            one.needed is None,
            not is_own(one.line, trace.package),
            -one.depth,
        ),
    )


def _distinct(several: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The first hypothesis of each replacement."""
    found: dict[Replacement, Hypothesis] = {}
    for one in several:
        found.setdefault(one.replacement, one)
    return [*found.values()]


def _counted(weight: WrongWeight) -> Iterator[Hypothesis]:
    counts = counts_with_parts(weight.traced.context, weight.traced.place).values()
    for needed in all_needed(weight):
        is_made = needed.made.node is not None and needed.made.at is not None
        is_seen = is_made or needed.operand is not Operand.RESULT
        is_count = needed.needed is None or any(is_close(value, needed.needed) for value in counts)
        if is_seen and is_count and not _is_mask(weight.chain.graph, _replaced(weight, needed)):
            yield from _hypothesis(weight, needed)
            yield from _read(weight, needed)


def _at(
    operation: Operation,
    node: Node,
    operand: Operand = Operand.RESULT,
    position: int = 0,
) -> Hypothesis:
    """The hypothesis on an operation, at the innermost line that called it."""
    line = operation.stack[0]
    replacement = Replacement(
        file=line.file,
        line=line.number,
        columns=line.columns,
        operation=operation.name,
        operand=operand,
        position=position,
    )
    return Hypothesis(line=line, replacement=replacement, node=node)


def _can_be_replaced(operation: Operation) -> bool:
    """Whether an operation is one of torch that computes a value and was called by a line."""
    is_made = operation.name not in UNSEEN and not operation.name.startswith(COPYING)
    return operation.line is not None and is_made


def _hypothesis(weight: WrongWeight, one: Needed) -> Iterator[Hypothesis]:
    """Yield hypotheses on the line that called an operation, if any.

    If the line's function has several callers, there is also a hypothesis on the line that called
    the function. A line that makes a wrong count from right counts is wrong for all callers.
    """
    operation = weight.operation(one.node)
    if not _can_be_replaced(operation):
        return
    if operation.name == READ and operation.line in weight.lines_of(GATHERING):
        return
    found = replace(
        _at(operation, _replaced(weight, one), one.operand, one.position),
        had=one.made.value,
        needed=one.needed,
        depth=one.depth,
        factor=one.factor,
        is_handed=_is_handed(weight, one),
    )
    called = _called(found, operation, weight.chain.graph)
    if called is not found and not one.is_changed:
        yield called
    yield found


def _is_handed(weight: WrongWeight, one: Needed) -> bool:
    """Whether a line only reads a number that Python computed elsewhere.

    The number is in a variable, or the line makes a tensor of a number that it looks up or gets
    from a function.
    """
    operation = weight.operation(one.node)
    is_lifted = operation.name == LIFTED
    scope = scope_of(operation.stack[0])
    if scope is None or not (is_lifted or one.operand is Operand.NUMBER):
        return False
    held = {name for name, number in operation.variables if is_close(number, one.made.value)}
    calls = scope.nodes(ast.Call) if is_lifted else []
    making = [one for one in calls if one.args and ast.unparse(one.func).endswith("tensor")]
    given = [call.args[0] for call in making]
    return not held.isdisjoint(scope.names()) or any(map(_is_looked_up, given))


def _is_looked_up(given: ast.expr) -> bool:
    """Whether an expression looks up a number, or calls a function of the framework."""
    functions = [one.func for one in ast.walk(given) if isinstance(one, ast.Call)]
    called = [
        one
        for one in functions
        if (isinstance(one, ast.Name) and one.id not in dir(builtins))
        or (isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self")
    ]
    return bool(called) or isinstance(given, (ast.Name, ast.Attribute, ast.Subscript))


def _read(weight: WrongWeight, one: Needed) -> Iterator[Hypothesis]:
    """Yield the hypothesis on the last read of a number that Python then passes to an operation."""
    graph, before = weight.chain.graph, range(one.node.place - 1, -1, -1)
    operations = ((place, graph.operation(Node(one.node.rank, place))) for place in before)
    reads = (
        _at(operation, Node(one.node.rank, place))
        for place, operation in operations
        if operation.name == READ and operation.stack
        if is_close(operation.contents.total, one.made.value)
    )
    if one.operand is Operand.NUMBER and (found := next(reads, None)) is not None:
        depth = one.depth + 1
        yield replace(found, had=one.made.value, needed=one.needed, depth=depth, factor=one.factor)


def _called(one: Hypothesis, operation: Operation, graph: Graph) -> Hypothesis:
    """The hypothesis, moved to the line that called the function if several lines call it."""
    line, *callers = operation.stack
    if len(graph.callers_of[line]) < 2:
        return one
    called = replace(one.replacement, caller=(callers[0].file, callers[0].number))
    return replace(one, line=callers[0], replacement=called)


def _replaced(weight: WrongWeight, one: Needed) -> Node:
    """The node of the operand or result that should have had another value."""
    is_operand = one.operand is Operand.TENSOR
    return weight.chain.graph.inputs(one.node)[one.position] if is_operand else one.node


def _is_mask(graph: Graph, node: Node) -> bool:
    """Whether a tensor has several entries, all of them 0 or 1."""
    held = graph.operation(node).contents
    return held.size > 1 and held.largest <= 1 and held.total == held.nonzero
