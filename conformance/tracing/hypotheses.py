"""Values that a line may have had to compute with for a weight to be right.

In: the trace of a wrong weight. Out: where a run can put another value in place of the line's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING

from adapters.contract.job import Operand, Replacement
from conformance.findings.trace import (
    BUILT,
    GIVEN,
    INDEXING,
    LISTED,
    MULTIPLYING,
    OUTSIDE,
    READ,
    ROLL,
    VIEWS,
    WRITING,
)
from conformance.tracing.graph import Node, is_close
from conformance.tracing.needed import Needed, all_needed
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.right_counts import counts_with_parts
from conformance.tracing.source import chosen_by
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.graph import Graph
    from conformance.tracing.trace import Trace
    from conformance.tracing.wrong_weight import WrongWeight

UNSEEN = (GIVEN, OUTSIDE, BUILT, LISTED)
"""Nodes that are no operations of torch, so that no run can change what they make."""

GATHERING = ("c10d.allgather", "c10d.broadcast")
"""Operations by which wrappers of models compare these over ranks, at the line that wraps one."""

COPYING = ("aten.empty", *GATHERING)
"""Operations that make no value."""


class Values(Enum):
    """The values that a line had to have."""

    COUNTS = "counts"  # of the tokens that it moves, or of parts in their order
    MASK = "mask"
    LATER = "later"  # entries from other places
    RANKS = "ranks"  # the sum over all ranks
    REWARDS = "rewards"  # what advantages are made of, in the order of samples or groups


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """At a line, a value had to be another."""

    line: Line
    values: Values
    replacement: Replacement
    node: Node
    """The operation whose value is replaced."""

    had: float = 0.0
    needed: float | None = None
    """The value in the trace, and the needed one; None if others are added to it."""

    depth: int = 0
    """The distance of the value from the token's loss: parts of a divisor are further away, and so
    is what moves no value of the token."""

    factor: Node | None = None
    """The operation that multiplies the token's value by it, or divides."""

    mask: Replacement | None = None
    """The place where the loss is multiplied by a mask."""

    used: Line | None = None
    """The line that has the value, if the one to blame made the only operand that is not right."""

    reason: str = ""
    """The reason, in words, to blame the line rather than the one whose value is replaced."""

    def is_made_of(self, other: Hypothesis, graph: Graph) -> bool:
        """Whether its value was made of that of another, also by plain Python, or at its line."""
        if self.line == other.line:
            return True
        if self.factor is not None and self.factor == other.factor:
            return self.depth < other.depth
        if Values.LATER in (self.values, other.values):
            return self.values is other.values and self.depth > other.depth
        return other.node in graph.behind([self.node])

    def is_of_all(self, other: Hypothesis) -> bool:
        """Whether it is about what a line has for all callers, and another for one of them."""
        caller = other.replacement.caller
        return caller is not None and replace(self.replacement, caller=caller) == other.replacement


def hypotheses(trace: Trace) -> list[Hypothesis]:
    """Hypotheses on the values that lines had to compute with, best first.

    A factor that is left out may be anywhere, so that lines which are suspected come first, then
    the framework's own, and then those that are farthest from the loss. Where a token is lost or
    must be masked no count is wrong.
    """
    graph, weight = trace.graph, trace.weight
    has_counts = weight is not None and trace.job.expected and trace.job.observed
    several = [
        _ordered(weight, trace, _counted(weight)) if has_counts and weight is not None else [],
        _ordered(weight, trace, () if has_counts else _masked(trace)),
        [*_moves(trace)],
        [*_of_ranks(trace)],
    ]
    if isinstance(trace.job, TracedAdvantage):
        return [*several[-1], *_moves_of_parts(trace)]
    if trace.job.metric is not None:
        return several[0]
    if has_counts:
        return _distinct([*several[0], *_moves_of_masks(trace), *several[2]])
    assert graph is not None
    in_turn = [one for each in zip_longest(*several) for one in each if one is not None]
    suspected = {one.line for one in trace.suspects}
    ordered = sorted(in_turn, key=lambda one: one.line not in suspected)
    # A mask that another line cuts is made right by what it is used for as well.
    return _distinct([*_moves_of_masks(trace), *ordered])


def _distinct(several: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The first hypothesis of each replacement."""
    found: dict[Replacement, Hypothesis] = {}
    for one in several:
        found.setdefault(one.replacement, one)
    return [*found.values()]


def _ordered(
    weight: WrongWeight | None, trace: Trace, several: Iterable[Hypothesis]
) -> list[Hypothesis]:
    suspected = [one.line for one in trace.suspects]
    order = {line: place for place, line in reversed([*enumerate(suspected)])}
    return sorted(
        _distinct(several),
        key=lambda one: (
            order.get(one.line, len(order)),
            weight is not None and one.needed is None,
            not is_own(one.line, trace.package),
            -one.depth,
        ),
    )


def _counted(weight: WrongWeight) -> Iterator[Hypothesis]:
    counts = counts_with_parts(weight.traced.context, weight.traced.place).values()
    for needed in all_needed(weight):
        is_made = needed.made.node is not None and needed.made.at is not None
        is_seen = is_made or needed.operand is not Operand.RESULT
        is_count = needed.needed is None or any(is_close(value, needed.needed) for value in counts)
        if is_seen and is_count and not _is_mask(weight.chain.graph, _replaced(weight, needed)):
            yield from _hypothesis(weight, needed)
            yield from _read(weight, needed)


def _masked(trace: Trace) -> Iterator[Hypothesis]:
    """Yield the masks by which losses are multiplied, and what made them.

    Those that a token which weighs has met; one that is lost may have met any.
    """
    graph = trace.graph
    assert graph is not None
    others = frozenset(graph.nodes()) - graph.painted.keys()
    met = graph.before_roots if trace.chain is None else trace.chain.way
    for factor in sorted(met, reverse=True):
        operation = graph.operation(factor)
        is_forward = operation.requires_grad and operation.backward_pass is None
        if not is_forward or not operation.name.startswith(MULTIPLYING) or not operation.stack:
            continue
        for position, mask in enumerate(graph.inputs(factor)):
            if mask in graph.painted or not _is_mask(graph, mask):
                continue
            of_two = min(position, 1)  # parts of a mask may have been written one after the other
            at = _at(operation, mask, Values.MASK, Operand.TENSOR, of_two)
            multiplied = _called(replace(at, depth=-factor.place), operation, graph)
            yield replace(multiplied, mask=multiplied.replacement)
            size = graph.operation(mask).contents.size
            for node in graph.behind([mask], others):
                made, is_seen = graph.operation(node), _can_be_replaced(graph.operation(node))
                if is_seen and made.inputs and made.contents.size == size and _is_mask(graph, node):
                    found = _at(made, node, Values.MASK)
                    yield replace(found, mask=multiplied.replacement, depth=1 - node.place)


def _moves(trace: Trace) -> Iterator[Hypothesis]:
    """Yield operations that take entries, and may have had to take those before or after them.

    A shift is undone by the one shift that it is.
    """
    graph = trace.graph
    assert graph is not None
    suspected = {one.line: place for place, one in reversed([*enumerate(trace.suspects)])}
    found: dict[Replacement, Hypothesis] = {}
    for node in sorted(graph.nodes(), reverse=True):
        operation = graph.operation(node)
        name = VIEWS.get(operation.name, operation.name)
        is_view = name != operation.name
        is_taking = is_view or name == ROLL or name in INDEXING
        is_forward = is_view or operation.backward_pass is None
        if not (is_taking and is_forward and operation.stack) or operation.contents.size < 2:
            continue
        if not is_own(operation.stack[0], trace.package):
            continue
        shift = int(operation.numbers[0]) if name == ROLL and operation.numbers else 0
        for by in (shift,) if shift else (1, -1):
            one = _at(replace(operation, name=name), node, Values.LATER)
            moved = replace(one.replacement, moved=by)
            is_on_way = is_view or operation.requires_grad
            of_other = replace(one, replacement=moved, depth=0 if is_on_way else 1)
            found.setdefault(moved, of_other)
    yield from sorted(
        found.values(),
        key=lambda one: (
            one.replacement.operation != ROLL,
            suspected.get(one.line, len(suspected)),
            one.depth,
        ),
    )


def _moves_of_parts(trace: Trace) -> Iterator[Hypothesis]:
    """Yield what takes parts of tensors for suspected lines, and what writes a reward anywhere.

    A recursion reads the values of two tokens: one of them may be another's.
    """
    graph = trace.graph
    assert graph is not None
    suspected = [one.line for one in trace.suspects]
    found: dict[Replacement, Hypothesis] = {}
    for node in sorted(graph.painted):
        operation, cut = graph.operation(node), graph.traces[node.rank].cuts.get(node.place)
        if cut is not None and operation.line in suspected:
            operation = replace(operation, name=cut.operation, stack=cut.stack)
        elif operation.name != WRITING:
            continue
        if operation.stack and is_own(operation.stack[0], trace.package):
            for one in _moved(_at(operation, node, Values.LATER)):
                found.setdefault(one.replacement, one)
    yield from found.values()


def _moves_of_masks(trace: Trace) -> Iterator[Hypothesis]:
    """Yield what takes parts of tensors without a derivative, such as masks, at suspected lines."""
    graph = trace.graph
    assert graph is not None
    suspected = {one.line for one in trace.suspects if is_own(one.line, trace.package)}
    for node in graph.nodes():
        cut = graph.traces[node.rank].cuts.get(node.place)
        if cut is not None and suspected.intersection(cut.stack[:1]):
            operation = replace(graph.operation(node), name=cut.operation, stack=cut.stack)
            yield from _moved(_at(operation, node, Values.LATER))


def _moved(one: Hypothesis) -> Iterator[Hypothesis]:
    """Yield the hypotheses that an operation had to take entries one place later, or earlier."""
    for by in (1, -1):
        yield replace(one, replacement=replace(one.replacement, moved=by))


def _of_ranks(trace: Trace) -> Iterator[Hypothesis]:
    """Yield the reductions that leave ranks out, at the lines that chose these."""
    graph = trace.graph
    assert graph is not None
    found: dict[Replacement, Hypothesis] = {}
    for node in graph.nodes():
        operation = graph.operation(node)
        of = operation.collective
        if of is None or of.is_message or "reduce" not in operation.name or not operation.stack:
            continue
        if len(of.group) < len(graph.traces) and node in graph.painted:
            one = _at(operation, node, Values.RANKS)
            chooser = chosen_by(operation.stack, "group")
            found.setdefault(one.replacement, replace(one, line=chooser or one.line))
    yield from found.values()


def rewarded_lines(trace: Trace, ordinary: Graph) -> Iterator[tuple[Hypothesis, Sequence[Node]]]:
    """Yield the lines that make something of a reward, with what they make in an ordinary run.

    Those on the way to a loss, or to lists of plain Python, come before others, and the first of
    them first.
    """
    assert trace.graph is not None
    of_reward = {
        (operation.line, operation.name)
        for operation in map(trace.graph.operation, trace.graph.painted)
        if operation.backward_pass is None
    }
    handed = (node for node in ordinary.nodes() if ordinary.operation(node).name == LISTED)
    on_way = ordinary.before_roots | ordinary.behind(handed)
    places: dict[Replacement, tuple[Hypothesis, list[Node]]] = {}
    for node in sorted(ordinary.nodes(), key=lambda one: (one not in on_way, one.place, one.rank)):
        operation = ordinary.operation(node)
        is_of_reward = (operation.line, operation.name) in of_reward
        if (
            is_of_reward
            and not operation.requires_grad
            and operation.contents.is_measured
            and _can_be_replaced(operation)
        ):
            one = _at(operation, node, Values.REWARDS)
            if is_own(one.line, trace.package):
                places.setdefault(one.replacement, (one, []))[1].append(node)
    yield from places.values()


def operands(one: Hypothesis, trace: Trace, ordinary: Graph) -> Iterator[Hypothesis]:
    """Yield lines that made what an operation on rewards computes with besides these.

    One may have taken a part of a tensor, and others counted.
    """
    cut = ordinary.traces[one.node.rank].cuts.get(one.node.place)
    if cut is not None and cut.stack[0] != one.line:
        view = replace(ordinary.operation(one.node), name=cut.operation, stack=cut.stack)
        yield _at(view, one.node, one.values)
    for node in ordinary.inputs(one.node):
        operation = ordinary.operation(node)
        is_count = operation.contents.size == 1 and float(operation.contents.total).is_integer()
        if is_count and _can_be_replaced(operation) and is_own(operation.stack[0], trace.package):
            yield _at(operation, node, one.values)


def _at(
    operation: Operation,
    node: Node,
    values: Values,
    operand: Operand = Operand.RESULT,
    position: int = 0,
) -> Hypothesis:
    """The hypothesis on an operation at its innermost line."""
    line = operation.stack[0]
    replacement = Replacement(
        file=line.file,
        line=line.number,
        columns=line.columns,
        operation=operation.name,
        operand=operand,
        position=position,
    )
    return Hypothesis(line=line, values=values, replacement=replacement, node=node)


def _can_be_replaced(operation: Operation) -> bool:
    """Whether a line has asked for an operation of torch that makes a value."""
    is_made = operation.name not in UNSEEN and not operation.name.startswith(COPYING)
    return operation.line is not None and is_made


def _hypothesis(weight: WrongWeight, one: Needed) -> Iterator[Hypothesis]:
    """Yield hypotheses, if a line has asked for the operation.

    They are about the line that calls its function if others do so too, and about the line itself.
    A line that makes a wrong count of right ones is wrong whoever calls it.
    """
    operation = weight.operation(one.node)
    if not _can_be_replaced(operation):
        return
    if operation.name == READ and operation.line in weight.lines_of(GATHERING):
        return
    found = replace(
        _at(operation, _replaced(weight, one), Values.COUNTS, one.operand, one.position),
        had=one.made.value,
        needed=one.needed,
        depth=one.depth,
        factor=one.factor,
    )
    called = _called(found, operation, weight.chain.graph)
    if called is not found and not one.is_changed:
        yield called
    yield found


def _read(weight: WrongWeight, one: Needed) -> Iterator[Hypothesis]:
    """Yield where Python last read the number that it hands an operation, if it did."""
    graph, before = weight.chain.graph, range(one.node.place - 1, -1, -1)
    operations = ((place, graph.operation(Node(one.node.rank, place))) for place in before)
    reads = (
        _at(operation, Node(one.node.rank, place), Values.COUNTS)
        for place, operation in operations
        if operation.name == READ and operation.stack
        if is_close(operation.contents.total, one.made.value)
    )
    if one.operand is Operand.NUMBER and (found := next(reads, None)) is not None:
        depth = one.depth + 1
        yield replace(found, had=one.made.value, needed=one.needed, depth=depth, factor=one.factor)


def _called(one: Hypothesis, operation: Operation, graph: Graph) -> Hypothesis:
    """A hypothesis on the line that called the function, if others do so too."""
    line, *callers = operation.stack
    if len(graph.callers_of[line]) < 2:
        return one
    called = replace(one.replacement, caller=(callers[0].file, callers[0].number))
    return replace(one, line=callers[0], replacement=called)


def _replaced(weight: WrongWeight, one: Needed) -> Node:
    """The operand or result whose value had to be another."""
    is_operand = one.operand is Operand.TENSOR
    return weight.chain.graph.inputs(one.node)[one.position] if is_operand else one.node


def _is_mask(graph: Graph, node: Node) -> bool:
    """Whether a tensor has several entries, all of them 0 or 1."""
    held = graph.operation(node).contents
    return held.size > 1 and held.largest <= 1 and held.total == held.nonzero
