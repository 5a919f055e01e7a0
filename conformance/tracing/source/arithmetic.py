"""Where plain Python goes on with a number that was read out of a tensor.

No operation shows what becomes of it. Its names are followed forwards through the source: in the
function that read it, and in those that called that function and were returned the number.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from conformance.tracing.source.scopes import scope_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line
    from conformance.tracing.source.scopes import Function

AVERAGES = ("mean", "average", "avg")
"""What averages are called."""

AVERAGING = (*AVERAGES, "reduce")
"""What names of functions have in them that divide by how many numbers they are given."""

COLLECTING = frozenset({"append", "extend", "update"})
"""Methods by which something gets what it holds."""


class GoesOn(NamedTuple):
    """A line that scales, averages or only collects a number."""

    line: Line
    scales: bool


def goes_on(stack: Sequence[Line]) -> Iterator[GoesOn]:
    """Yield the lines that scale, average or collect a number that was read, the nearest first.

    ``stack`` begins with the line that reads, followed by those that called its function.
    """
    for line, flow in _flows(stack):
        for number, scales in flow.lines.items():
            yield GoesOn(replace(line, number=number), scales)


def read_instead(stack: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines that read what a call was given, if nothing reads the number it returned."""
    for line, flow in _flows(stack):
        yield from (replace(line, number=number) for number in flow.instead)


def averages(line: Line) -> bool:
    """Whether a line names an average, without which it would be another reduction."""
    scope = scope_of(line)
    attributes: list[ast.Attribute] = [] if scope is None else scope.nodes(ast.Attribute)
    return any(one.attr.lower() in AVERAGES for one in attributes)


def _flows(stack: Sequence[Line]) -> Iterator[tuple[Line, _Flow]]:
    """Yield how a number goes on in a function, and in its callers as long as it is returned."""
    places: frozenset[int] = frozenset()
    for line in stack:
        scope = scope_of(line)
        if scope is None:
            return
        flow = _Flow()
        flow.go_through(scope.functions[-1], line.number, places)
        yield line, flow
        if not flow.is_returned:
            return
        places = flow.places


@dataclass
class _Flow:
    """The names that hold a number in a function, and the lines that scale or only collect it.

    ``places`` are those of the number in a tuple that the function returns, if it returns one.
    """

    names: set[str] = field(default_factory=set)
    lines: dict[int, bool] = field(default_factory=dict)
    is_returned: bool = False
    places: frozenset[int] = frozenset()
    instead: list[int] = field(default_factory=list)
    """Later lines that read what the number was made of, if none reads the number."""

    def go_through(self, function: Function, line: int, places: frozenset[int]) -> None:
        """Follow a number that a line has, alone or at places of a tuple."""
        statements = sorted(_statements(function), key=lambda one: one.lineno)
        around = [one for one in statements if one.lineno <= line <= (one.end_lineno or 0)]
        for start in around[-1:]:
            if _collects(start):
                self.lines[start.lineno] = _scales(start)
            self.names.update(_targets(start, places))
            self.is_returned, self.places = isinstance(start, ast.Return), places
        later = [one for one in statements if one.lineno > line]
        if self.names and not any(self.names & _read(one) for one in later):
            given = {name for start in around[-1:] for name in _given(start)}
            self.instead = [one.lineno for one in later if given & _read(one)]
        for one in later:
            if self.names & _read(one):
                self.names.update(_targets(one, frozenset()))
                if _scales(one) or _collects(one):
                    self.lines[one.lineno] = _scales(one)
                self._note_return(one)

    def _note_return(self, one: ast.stmt) -> None:
        if isinstance(one, ast.Return):
            parts = enumerate(one.value.elts if isinstance(one.value, ast.Tuple) else ())
            held = (place for place, part in parts if not self.names.isdisjoint(_read(part)))
            self.is_returned, self.places = True, frozenset(held)


def _statements(function: Function) -> Iterator[ast.stmt]:
    """Yield the statements of a function that hold no others, and the heads of its loops."""
    for node in ast.walk(function):
        if isinstance(node, ast.For):
            yield ast.copy_location(ast.For(node.target, node.iter, [], [], None), node.iter)
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def _read(node: ast.AST) -> set[str]:
    """The names that are read; where something is collected, those of that."""
    parts: list[ast.AST] = [node]
    match node:
        case ast.Expr(value=ast.Call(args=given)) if _collects(node):
            parts = [part for part in given if not _takes_out(part)]
    inner = [one for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)]
    return {one.id for one in inner if isinstance(one.ctx, ast.Load)}


def _given(one: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement's call is given, without those given by keyword."""
    match one:
        case ast.Assign(value=ast.Call(args=given)):
            for each in given:
                yield from _read(each)


def _targets(one: ast.stmt, places: frozenset[int]) -> Iterator[str]:
    """Yield the names that a statement gives what it reads; of a tuple those at the places.

    What an object keeps in a field is not followed: ``self`` has much else.
    """
    match one:
        case ast.Assign(targets=[ast.Tuple(elts=parts)]) if places:
            targets = [part for place, part in enumerate(parts) if place in places]
        case ast.Assign(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            targets = [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target))) if _collects(one):
            targets = [target]
        case _:
            return
    for each in targets:
        while isinstance(each, ast.Subscript | ast.Attribute):
            each = each.value
        parts = each.elts if isinstance(each, ast.Tuple) else [each]
        yield from (part.id for part in parts if isinstance(part, ast.Name) and part.id != "self")


def _scales(one: ast.stmt) -> bool:
    """Whether a statement multiplies, divides or averages."""
    for node in ast.walk(one):
        match node:
            case ast.BinOp(op=ast.Mult() | ast.Div()) | ast.AugAssign(op=ast.Mult() | ast.Div()):
                return True
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                if any(word in name for word in AVERAGING):
                    return True
    return False


def _takes_out(one: ast.AST) -> bool:
    """Whether something else is taken out of what may hold the number."""
    return isinstance(one, ast.Call) and ast.unparse(one.func).endswith(".pop")


def _collects(one: ast.AST) -> bool:
    match one:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name in COLLECTING
    return False
