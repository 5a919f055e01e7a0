"""The framework's own statements that may be wrong, with edits of each.

The input is the trace of a wrong number. The output is statements: those of suspected functions
first, and within a function those that handle the token's value first.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from conformance.tracing.edits import units
from conformance.tracing.source import is_at, scope_of
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from conformance.findings.trace import Line
    from conformance.tracing.edits import Edited, Unit
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.trace import Trace

    Meant = Callable[[str, Unit, Mapping[str, str]], Iterator[Edited]]
    """A function that yields edits of a statement, given its file and the kinds of its values."""


class Statement(NamedTuple):
    """A statement that may be wrong, or an expression in a compound statement's header."""

    line: Line
    unit: Unit
    kinds: Mapping[str, str]
    """The kinds of the values that the statement can read."""

    def is_beside(self, other: Statement) -> bool:
        """Whether both statements are in the same function."""
        return (self.line.file, self.line.function) == (other.line.file, other.line.function)

    def edits(self, meant: Meant) -> Iterator[Edited]:
        """Yield edits of one sort, the likeliest first."""
        return meant(self.line.file, self.unit, self.kinds)


def statements(trace: Trace) -> list[Statement]:
    """The statements that may be wrong, best first; empty for frameworks on JAX."""
    graph = trace.graph
    assert graph is not None
    if any(graph.operation(node).name.startswith("jax.") for node in graph.nodes()):
        return []
    kinds = _kinds(graph)
    found: dict[tuple[str, int, int], Statement] = {}
    for line in [*_asking(trace, graph), *_plain(trace)]:
        if (scope := scope_of(line)) is None:
            continue
        for unit in units(scope.functions[-1], line.number):
            key = line.file, unit.lineno, unit.col_offset
            if key not in found:
                known = kinds.get((line.file, line.function), {})
                bound = _bound(known, scope.functions[-1], unit.lineno)
                found[key] = Statement(line, unit, bound)
    return [*found.values()]


def _bound(kinds: Mapping[str, str], function: ast.AST, number: int) -> dict[str, str]:
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


def _asking(trace: Trace, graph: Graph) -> list[Line]:
    """The lines that call operations on the way to a loss or log, and their callers."""
    in_loss = {node for node, in_gradient in graph.painted.items() if not in_gradient}
    on_way = (graph.before_roots | in_loss) if graph.roots else {*graph.nodes()}
    suspected = [one.line for one in trace.suspects]
    functions = {(one.file, one.function) for one in suspected}

    def order(one: tuple[Line, Node, int]) -> tuple[object, ...]:
        line, node, depth = one
        return (
            suspected.index(line) if line in suspected else len(suspected),
            (line.file, line.function) not in functions,
            node not in graph.painted,
            depth,
            -node.place,
        )

    asking = [
        (line, node, depth)
        for node in on_way
        if (operation := graph.operation(node)).backward_pass is None
        for depth, line in enumerate(operation.stack)
        if is_own(line, trace.package)
    ]
    return [line for line, _, _ in sorted(asking, key=order)]


def _plain(trace: Trace) -> Iterator[Line]:
    """Yield all lines of suspected functions."""
    for suspect in trace.suspects:
        line = suspect.line
        scope = scope_of(line) if is_own(line, trace.package) else None
        function: ast.stmt | None = None if scope is None else scope.functions[-1]
        if function is not None and is_at(function, line.number):
            for number in range(line.number, function.lineno, -1):
                yield replace(line, number=number, columns=None)
