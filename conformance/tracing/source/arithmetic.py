"""Where plain Python goes on with a number that was read out of a tensor.

No operation shows what becomes of it. Its names are followed forwards through the source: in the
function that read it, and in those that called that function and were returned the number or gave
it what collects the number.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from conformance.tracing.source.scopes import arguments_of, is_at, parameters, scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from conformance.findings.trace import Line
    from conformance.tracing.source.scopes import Function

AVERAGES = ("mean", "average", "avg")
"""What averages are called."""

AVERAGING = (*AVERAGES, "reduce")
"""What names of functions have in them that divide by how many numbers they are given."""

COLLECTING = frozenset({"append", "extend", "update"})
"""Methods by which something gets what it holds, and words of functions that do so."""


class GoesOn(NamedTuple):
    """A line that scales, averages or only collects a number."""

    line: Line
    scales: bool


def goes_on(stack: Sequence[Line]) -> Iterator[GoesOn]:
    """Yield the lines that scale, average or collect a number that was read, the nearest first.

    A line that divides is followed by those that computed what it divides by. ``stack`` begins with
    the line that reads, followed by those that called its function.
    """
    for line, flow in _flows(stack):
        for number, scales in flow.lines.items():
            at = replace(line, number=number)
            yield GoesOn(at, scales)
            yield from (GoesOn(one, scales=True) for one in _divisors(at))


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
    """Yield how a number goes on in a function, and in its callers as long as they get it."""
    places: frozenset[int] | None = frozenset()
    names: set[str] = set()
    for line, caller in zip_longest(stack, stack[1:]):
        scope = scope_of(line)
        if scope is None:
            return
        flow, function = _Flow({*names}, collectors={*names}), scope.functions[-1]
        flow.go_through(function, line.number, places)
        yield line, flow
        places = flow.places if flow.is_returned else None
        names = set() if caller is None else flow.collected(function, caller)
        if places is None and not names:
            return


@dataclass
class _Flow:
    """The names that hold a number in a function, and the lines that scale or only collect it.

    At first ``names`` are those that a function which it calls collected the number in. ``places``
    are those of the number in a tuple that the function returns, if it returns one.
    """

    names: set[str]
    lines: dict[int, bool] = field(default_factory=dict)
    is_returned: bool = False
    places: frozenset[int] = frozenset()
    collectors: set[str] = field(default_factory=set)
    """The names of objects that get the number."""

    instead: list[int] = field(default_factory=list)
    """Later lines that read what the number was made of, if none reads the number."""

    def go_through(self, function: Function, line: int, places: frozenset[int] | None) -> None:
        """Follow a number that a line has, alone or at places of a tuple; None if it has none."""
        statements = sorted(_statements(function), key=lambda one: one.lineno)
        around = [one for one in statements if is_at(one, line)]
        for start in around[-1:] if places is not None else ():
            if _collecting(start):
                self.lines[start.lineno] = _scales(start, lambda part: is_at(part, line))
            self._give(start, places or frozenset())
            self.is_returned, self.places = isinstance(start, ast.Return), places or frozenset()
        later = [one for one in statements if one.lineno > line]
        if self.names and not any(self.names & _read(one) for one in later):
            given = {name for start in around[-1:] for name in _given(start)}
            self.instead = [one.lineno for one in later if given & _read(one)]
        for one in later:
            if self.names & _read(one):
                self._give(one, frozenset())
                scales = _scales(one, lambda part: bool(self.names & _read(part)))
                if scales or _collecting(one):
                    self.lines[one.lineno] = scales
                self._note_return(one)

    def collected(self, function: Function, caller: Line) -> set[str]:
        """The names of a caller whose objects it gave a function, which collected the number."""
        given = {one.arg for one in parameters(function)} & self.collectors
        held = chain.from_iterable(arguments_of(caller, function, one) for one in sorted(given))
        return {one.id for one in held if isinstance(one, ast.Name)}

    def _give(self, one: ast.stmt, places: frozenset[int]) -> None:
        """Note the names that a statement gives the number, and which of them collect it."""
        for target in _targets(one, places):
            root = target
            while isinstance(root, ast.Subscript | ast.Attribute):
                root = root.value
            parts = root.elts if isinstance(root, ast.Tuple) else [root]
            names = {part.id for part in parts if isinstance(part, ast.Name)} - {"self"}
            self.names |= names
            if root is not target or _collecting(one):
                self.collectors |= names

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
    if isinstance(node, ast.stmt) and (collecting := _collecting(node)):
        parts = [part for part in collecting[1] if not _takes_out(part)]
    inner = [one for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)]
    return {one.id for one in inner if isinstance(one.ctx, ast.Load)}


def _given(one: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement's call is given, without those given by keyword."""
    match one:
        case ast.Assign(value=ast.Call(args=given)):
            for each in given:
                yield from _read(each)


def _targets(one: ast.stmt, places: frozenset[int]) -> list[ast.expr]:
    """What a statement gives what it reads; of a tuple the parts at the places.

    What an object keeps in a field is not followed: ``self`` has much else.
    """
    match one:
        case ast.Assign(targets=[ast.Tuple(elts=parts)]) if places:
            return [part for place, part in enumerate(parts) if place in places]
        case ast.Assign(targets=targets):
            return targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            return [target]
    collecting = _collecting(one)
    return [] if collecting is None else [collecting[0]]


def _scales(one: ast.stmt, holds: Callable[[ast.expr], bool]) -> bool:
    """Whether a statement multiplies, divides or averages what holds the number.

    Of a dict that is written out, each value is a number of its own.
    """
    dicts = (node for node in ast.walk(one) if isinstance(node, ast.Dict))
    values = chain.from_iterable(written.values for written in dicts)
    parts: list[ast.AST] = [value for value in values if holds(value)]
    return any(map(_is_scaling, chain.from_iterable(map(ast.walk, parts or [one]))))


def _is_scaling(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div()) | ast.AugAssign(op=ast.Mult() | ast.Div()):
            return True
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return any(word in name for word in AVERAGING)
    return False


def _divisors(line: Line) -> Iterator[Line]:
    """Yield the lines that computed the variables by which a line divides."""
    scope = scope_of(line)
    if scope is None:
        return
    for one in scope.nodes(ast.BinOp):
        match one:
            case ast.BinOp(op=ast.Div(), right=ast.Name(id=name)):
                number = scope.assignment(name)
                made = None if number is None else scope_of(replace(line, number=number))
                if made is not None and made.nodes(ast.BinOp):  # and has not only chosen it
                    yield replace(line, number=made.number)


def _takes_out(one: ast.AST) -> bool:
    """Whether something else is taken out of what may hold the number."""
    return isinstance(one, ast.Call) and ast.unparse(one.func).endswith(".pop")


def _collecting(one: ast.stmt) -> tuple[ast.expr, list[ast.expr]] | None:
    """What gets something by a statement that does nothing else, and what that is."""
    match one:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=name), args=given)):
            return (target, given) if name in COLLECTING else None
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[target, *given])):
            return None if COLLECTING.isdisjoint(name.split("_")) else (target, given)
    return None
