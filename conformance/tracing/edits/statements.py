"""The framework's own statements that may be wrong, with edits of each.

The input is the trace of a wrong number. The output is statements: suspected statements first, then
other statements by the number of operations between them and the wrong number.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import LISTED, READ, Line
from conformance.tracing.edits.edited import name_of, units
from conformance.tracing.graph import is_close
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.source import (
    first_line,
    function_at,
    functions_of,
    is_at,
    naming,
    scope_of,
)
from conformance.tracing.suspects.reasons import MOST
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from conformance.findings.trace import KindsOfLines, Operation
    from conformance.tracing.edits.edited import Edited, Kinds, Sort, Unit
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.trace import Trace

    Place = tuple[int, int, int]
    """The order of a line: its place among suspects, its distance, and when it last ran."""


class Statement(NamedTuple):
    """A statement that may be wrong, or an expression in a compound statement's header."""

    line: Line
    unit: Unit
    kinds: Kinds
    """The kinds of the values that the statement can read."""

    def is_at(self, line: Line) -> bool:
        """Whether a line is one of the statement's."""
        return line.file == self.line.file and is_at(self.unit, line.number)

    def is_beside(self, other: Statement) -> bool:
        """Whether both statements are in the same function."""
        return function_at(self.line) == function_at(other.line)

    def edits(self, sort: Sort) -> Iterator[Edited]:
        """Yield edits of one sort, the likeliest first."""
        return sort(self.line.file, self.unit, self.kinds)


BY_NAME = 4
"""The distance between a line and a line of plain Python that it uses. The used line assigns a
variable that the other line reads, or is in a function that the other line calls."""

FAR = 20
"""The distance of operations by which Python reads numbers and, if the token's value is lost, of
operations on its way. Other operations that the loss depends on are twice as far away."""


def statements(trace: Trace) -> list[Statement]:
    """The statements that may be wrong, best first; empty for frameworks on JAX."""
    graph = trace.graph
    if any(graph.operation(node).name.startswith("jax.") for node in graph.nodes()):
        return []
    kinds, of_loss = _kinds(graph), _loss_functions(trace, graph)
    found: dict[tuple[str, int, int], Statement] = {}
    named = dict(_naming(trace, graph))
    for line in _lines(trace, graph):
        if (line.file, line.function) in of_loss or (scope := scope_of(line)) is None:
            continue
        value = named.get(replace(line, columns=None))
        for unit in [value] if value else units(scope.functions[-1], line.number):
            key = line.file, unit.lineno, unit.col_offset
            if key not in found:
                known = kinds.get((line.file, first_line(scope.functions[-1])), {})
                bound = _bound(known, scope.functions[-1], unit.lineno)
                found[key] = Statement(line, unit, bound)
    return [*found.values()]


def _loss_functions(trace: Trace, graph: Graph) -> set[tuple[str, str]]:
    """The functions that compute the loss, if the traced number is an advantage; else none."""
    if not isinstance(trace.job, TracedAdvantage):
        return set()
    operations = (graph.operation(node) for node in graph.nodes())
    first = (one.stack[0] for one in operations if one.requires_grad and one.stack)
    return {(line.file, line.function) for line in first}


def _bound(kinds: KindsOfLines, function: ast.AST, number: int) -> dict[str, str]:
    """The kinds of the values that a line can read: of parameters and of earlier assignments."""
    first: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(node.lineno, first.get(node.id, node.lineno))
    roots = {text: re.split(r"[.\[]", text, maxsplit=1)[0] for text in kinds}
    read = (text for text in kinds if first.get(roots[text], 0) < number)
    found = {text: _kind_at(kinds[text], number) for text in read}
    return {text: kind for text, kind in found.items() if kind is not None}


def _kind_at(kinds: Mapping[int, str | None], number: int) -> str | None:
    """The kind of a value at a line: the one that was noted last, up to the line."""
    return kinds[max((one for one in kinds if one <= number), default=min(kinds))]


def _kinds(graph: Graph) -> dict[tuple[str, int], KindsOfLines]:
    """The kinds of each function's variables, by file and first line, merged over all ranks."""
    found: dict[tuple[str, int], KindsOfLines] = {}
    for trace in graph.traces:
        for function, kinds in trace.kinds.items():
            found.setdefault(function, {}).update(kinds)
    return found


def _lines(trace: Trace, graph: Graph) -> list[Line]:
    """The lines that may be wrong, best first."""
    found = {one.line: (n, 0, 0) for n, one in enumerate(trace.suspects) if trace.is_own(one.line)}
    multiplying: dict[Line, set[str]] = defaultdict(set)
    factors = {one.node for one in trace.weight.factors} if trace.weight else ()
    for node, distance in _far(trace, graph).items():
        operation = graph.operation(node)
        is_forward = operation.backward_pass is None
        is_seen = is_forward or node in factors or _loses_gradient(trace)
        for depth, line in enumerate(operation.stack if is_seen else ()):
            if is_own(line, trace.package):
                place = MOST, distance + depth, -node.place
                found[line] = min(place, found.get(line, place))
                if depth == 0:
                    multiplying[line] |= _numbers_read(operation)
    for line, _ in _naming(trace, graph):
        found[line] = min((MOST, 0, 0), found.get(line, (MOST, 0, 0)))
    reading = {
        line
        for node in (_read(graph) if trace.job.metric else ())
        for line in graph.operation(node).stack
    }
    found |= _plain(found, multiplying, reading)
    return sorted(found, key=lambda line: found[line])


def _numbers_read(operation: Operation) -> set[str]:
    """The variables whose number an operation computes with."""
    return {
        name
        for name, number in operation.variables
        if any(is_close(number, one) for one in operation.numbers)
    }


def _far(trace: Trace, graph: Graph) -> dict[Node, int]:
    """The distances of operations from a wrong number, in operations.

    The nearest are the operations of suspected lines and, unless the token's value is lost, those
    that multiply it. A caller is as far away as a further operation.
    """
    suspected = [one.line for one in trace.suspects]
    blamed = [one for one in graph.nodes() if graph.operation(one).line in suspected]
    way = [*(graph.painted if trace.chain is None else trace.chain.way)]
    if trace.job.is_trained_right:
        way = [one for one in way if one not in graph.trained]
    read = [one for one in graph.nodes() if graph.operation(one).name in (READ, LISTED)]
    ends: list[Node] = []
    loses_gradient = _loses_gradient(trace)
    if loses_gradient or (isinstance(trace.job, TracedAdvantage) and trace.job.is_nowhere):
        nodes = [one for one, of_gradient in graph.painted.items() if of_gradient is loses_gradient]
        ends = [*_stopped(graph, nodes)]
    if trace.job.metric is not None:
        ends = [*_logged(trace, graph), *(_read(graph) if trace.chain is None else ())]
    if trace.job.is_of_all and trace.job.metric is None:
        ends = [*_given_to_loss(graph)]
    found = _distances(graph, graph.roots, 2 * FAR)
    near = 0 if trace.chain else FAR
    for nodes, start in ((read, FAR), (way, near), (ends, 0), (blamed, 0)):
        for node, distance in _distances(graph, nodes, start).items():
            found[node] = min(distance, found.get(node, distance))
    return found


def _loses_gradient(trace: Trace) -> bool:
    """Whether the token's value reaches no gradient, although its weight should not be 0."""
    is_of_weight = trace.job.metric is None and not isinstance(trace.job, TracedAdvantage)
    return trace.chain is None and is_of_weight


def _read(graph: Graph) -> Iterator[Node]:
    """Yield the nodes at which Python reads the token's value after an output of the model."""
    for node in graph.painted:
        if graph.operation(node).name in (READ, LISTED):
            before = graph.behind([node], graph.painted)
            if any(graph.operation(one).requires_grad for one in before):
                yield node


def _logged(trace: Trace, graph: Graph) -> Iterator[Node]:
    """Yield the nodes of lines that name the logged number, or that assign what such lines read."""
    at: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node in graph.nodes():
        for line in graph.operation(node).stack:
            at[line.file, line.number].append(node)
    for line, _ in _naming(trace, graph):
        scope = scope_of(line)
        assigned = scope.assignments() if scope else ()
        for number in (line.number, *(other for _, other in assigned)):
            yield from at[line.file, number]


def _naming(trace: Trace, graph: Graph) -> Iterator[tuple[Line, ast.expr | None]]:
    """Yield the lines of the framework's functions that name the logged number; see `naming`."""
    stacks = chain.from_iterable(graph.operation(node).stack for node in graph.nodes())
    own = (line for line in dict.fromkeys(stacks) if is_own(line, trace.package))
    for line in {function_at(line): line for line in own if trace.job.logged_as}.values():
        scope = scope_of(line)
        values = naming(scope.functions[-1], trace.job.logged_as) if scope else {}
        yield from ((replace(line, number=one, columns=None), values[one]) for one in values)


def _given_to_loss(graph: Graph) -> Iterator[Node]:
    """Yield the nodes without a gradient, such as advantages, that operations of the loss read."""
    for node in (one for one in graph.nodes() if graph.operation(one).requires_grad):
        yield from (one for one in graph.inputs(node) if not graph.operation(one).requires_grad)


def _stopped(graph: Graph, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the given painted nodes that an unpainted node of equal size reads."""
    for node in nodes:
        size = graph.operation(node).contents.size
        after = [one for one in graph.readers(node) if graph.operation(one).contents.size == size]
        if any(one not in graph.painted for one in after):
            yield node


def _distances(graph: Graph, ends: Iterable[Node], start: int) -> dict[Node, int]:
    """The number of operations between each node and the nearest of some ends, plus ``start``."""
    found = dict.fromkeys(ends, start)
    waiting = deque(found)
    while waiting:
        node = waiting.popleft()
        for before in graph.inputs(node):
            if before not in found:
                found[before] = found[node] + 1
                waiting.append(before)
    return found


def _plain(
    found: Mapping[Line, Place], multiplying: Mapping[Line, set[str]], reading: set[Line]
) -> dict[Line, Place]:
    """The lines of plain Python that the found lines depend on, or that use what they read.

    These are the lines that assign a variable which a found line reads, and the lines of functions
    that a found line calls and that call no operation themselves. ``multiplying`` has the variables
    whose numbers lines compute with; lines that assign these are as near as an operand. The lines
    in ``reading`` read a logged number from a tensor, so lines that use their results follow.
    """
    several: dict[Line, Place] = {}
    counter = count()
    waiting = [(place, next(counter), line) for line, place in found.items()]
    heapify(waiting)
    seen: set[tuple[str, int]] = set()
    at = {(line.file, line.number) for line in found}
    functions = _functions(found)

    def add(other: Line, place: Place, away: int) -> None:
        if (other.file, other.number) not in at:
            heappush(waiting, ((MOST, place[1] + away, place[2]), next(counter), other))

    while waiting:
        place, _, line = heappop(waiting)
        if (line.file, line.number) in seen or (scope := scope_of(line)) is None:
            continue
        seen.add((line.file, line.number))
        is_plain = (line.file, line.number) not in at
        several.update([(line, place)] if is_plain else [])
        for name, number in scope.assignments():
            is_number = is_plain or name in multiplying.get(line, ())
            add(replace(line, number=number, columns=None), place, 1 if is_number else BY_NAME)
        for number in scope.uses() if line in reading else ():
            using = replace(line, number=number, columns=None)
            reading.add(using)
            add(using, place, 1)
        for call in scope.nodes(ast.Call):
            for other in functions.pop(name_of(call.func), ()):
                add(other, place, 1 if line in reading else BY_NAME)
    return several


def _functions(found: Iterable[Line]) -> dict[str, list[Line]]:
    """The lines of functions, by name, that are in the files of found lines and have no found line.

    The last line comes first, as it is nearest to the result.
    """
    at = {(line.file, line.function) for line in found}
    return {
        function.name: [
            Line(file, number, function.name)
            for number in range(function.end_lineno or 0, function.lineno, -1)
        ]
        for file in {line.file for line in found}
        for function in functions_of(file)
        if (file, function.name) not in at
    }
