"""The framework's own statements that may be wrong, with edits of each.

The input is the trace of a wrong number. The output is statements: suspected ones first, then the
others by the number of operations between them and the wrong number.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import LISTED, READ, Line
from conformance.tracing.edits.edited import name_of, units
from conformance.tracing.graph import is_close
from conformance.tracing.source import functions_of, scope_of
from conformance.tracing.suspects.reasons import MOST
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from conformance.findings.trace import Operation
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

    def is_beside(self, other: Statement) -> bool:
        """Whether both statements are in the same function."""
        return (self.line.file, self.line.function) == (other.line.file, other.line.function)

    def edits(self, sort: Sort) -> Iterator[Edited]:
        """Yield edits of one sort, the likeliest first."""
        return sort(self.line.file, self.unit, self.kinds)


BY_NAME = 4
"""The distance between a line and a line of plain Python that it uses: one that assigns a variable
it reads, or one in a function it calls."""

FAR = 20
"""The distance of operations that are only on the way of a token whose value is lost; others are
twice as far away."""


def statements(trace: Trace) -> list[Statement]:
    """The statements that may be wrong, best first; empty for frameworks on JAX."""
    graph = trace.graph
    assert graph is not None
    if any(graph.operation(node).name.startswith("jax.") for node in graph.nodes()):
        return []
    kinds = _kinds(graph)
    found: dict[tuple[str, int, int], Statement] = {}
    for line in _lines(trace, graph):
        if (scope := scope_of(line)) is None:
            continue
        for unit in units(scope.functions[-1], line.number):
            key = line.file, unit.lineno, unit.col_offset
            if key not in found:
                known = kinds.get((line.file, line.function), {})
                bound = _bound(known, scope.functions[-1], unit.lineno)
                found[key] = Statement(line, unit, bound)
    return [*found.values()]


def _bound(kinds: Kinds, function: ast.AST, number: int) -> dict[str, str]:
    """The kinds of the values that a line can read: of parameters and of earlier assignments."""
    first: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(node.lineno, first.get(node.id, node.lineno))
    roots = {text: re.split(r"[.\[]", text, maxsplit=1)[0] for text in kinds}
    return {text: kind for text, kind in kinds.items() if first.get(roots[text], 0) < number}


def _kinds(graph: Graph) -> dict[tuple[str, str], dict[str, str]]:
    """The kinds of each function's variables, merged over all ranks."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for trace in graph.traces:
        for function, kinds in trace.kinds.items():
            found.setdefault(function, {}).update(kinds)
    return found


def _lines(trace: Trace, graph: Graph) -> list[Line]:
    """The lines that may be wrong, best first."""
    found = {one.line: (n, 0, 0) for n, one in enumerate(trace.suspects) if trace.is_own(one.line)}
    multiplying: dict[Line, set[str]] = defaultdict(set)
    for node, distance in _far(trace, graph).items():
        operation = graph.operation(node)
        for depth, line in enumerate(operation.stack if operation.backward_pass is None else ()):
            if is_own(line, trace.package):
                place = MOST, distance + depth, -node.place
                found[line] = min(place, found.get(line, place))
                if depth == 0:
                    multiplying[line] |= _numbers_read(operation)
    found |= _plain(found, multiplying)
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
    way = graph.painted if trace.chain is None else trace.chain.way
    read = [one for one in graph.nodes() if graph.operation(one).name in (READ, LISTED)]
    found = _distances(graph, graph.roots, 2 * FAR)
    for ends, start in ((read, FAR), (way, 0 if trace.chain else FAR), (blamed, 0)):
        for node, distance in _distances(graph, ends, start).items():
            found[node] = min(distance, found.get(node, distance))
    return found


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


def _plain(found: Mapping[Line, Place], multiplying: Mapping[Line, set[str]]) -> dict[Line, Place]:
    """The lines of plain Python that the found lines depend on.

    These are the lines that assign a variable which a found line reads, and the lines of a function
    which it calls and which calls no operation itself. ``multiplying`` are the numbers that lines
    compute with, which are as far away as an operand.
    """
    several: dict[Line, Place] = {}
    waiting = deque(sorted(found, key=lambda line: found[line]))
    places = dict(found)
    known = {(line.file, line.number) for line in found}
    functions = _functions(found)

    def add(other: Line, line: Line, away: int) -> None:
        if (other.file, other.number) not in known:
            known.add((other.file, other.number))
            several[other] = places[other] = MOST, places[line][1] + away, places[line][2]
            waiting.append(other)

    while waiting:
        line = waiting.popleft()
        if (scope := scope_of(line)) is None:
            continue
        for name, number in scope.assignments():
            is_number = line in several or name in multiplying.get(line, ())
            add(replace(line, number=number, columns=None), line, 1 if is_number else BY_NAME)
        for call in scope.nodes(ast.Call):
            for other in functions.pop(name_of(call.func), ()):
                add(other, line, BY_NAME)
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
