"""Where the operands of an operation come from, read backwards through a framework's source.

No operation of torch made a number that Python counted, or chose the mask that a line adds up.
Names are followed through assignments, loops, parameters and keys, as far as the text tells.
"""

from __future__ import annotations

import ast
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from linecache import getlines
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import Line
from conformance.tracing.source.scopes import (
    Function,
    arguments_of,
    functions_of,
    key_of,
    parameters,
    scope_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.tracing.source.scopes import Scope

MOST = 60
"""Assignments that are read at most."""

COUNTING = frozenset({"len", "sum", "numel", "nelement", "size", "count_nonzero"})
"""Functions and methods that count."""

BUILDING = frozenset({"append", "extend"})
"""Methods by which a list gets what it holds."""


SHAPES = frozenset({"shape", "ndim"})
"""Attributes that count."""


def counts_itself(line: Line | None) -> bool:
    """Whether a line counts entries, such as by a shape, in what it was evaluating."""
    around = None if line is None else scope_of(line)
    if line is None or around is None:
        return False
    for value in around.evaluated(line.columns):
        for node in ast.walk(value):
            match node:
                case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                    if name in COUNTING - {"sum", "count_nonzero"}:
                        return True
                case ast.Attribute(attr=name) if name in SHAPES:
                    return True
    return False


def is_setting(stack: Sequence[Line], names: Sequence[str]) -> bool:
    """Whether a line reads a variable that was last given a field of something, here or by callers.

    ``stack`` begins with the line, followed by those that called its function.
    """
    around = scope_of(stack[0]) if stack else None
    if around is None:
        return False
    for name in set(names).intersection(around.names()):
        values = [*_assignments(around.functions[-1], name, around.number)]
        if not values and (function := around.function_with(name)) is not None:
            values = [*arguments_of(stack[1], function, name)] if len(stack) > 1 else []
        if len(values) == 1 and isinstance(values[0], ast.Attribute):
            return True
    return False


def only_reads(line: Line) -> bool:
    """Whether a line gives what it reads from fields, or under keys, and computes nothing."""
    around = scope_of(line)
    values = [] if around is None else around.evaluated(line.columns)
    fields = [one for one in values if isinstance(one, ast.Attribute | ast.Subscript)]
    computing = (ast.Call, ast.BinOp)
    return bool(fields) and not any(isinstance(one, computing) for one in values)


class Assigned(NamedTuple):
    """A line that gives a name its value."""

    line: Line
    value: ast.expr

    @property
    def counts(self) -> bool:
        """Whether plain Python counts there; a method of a tensor would be an operation."""
        calls = (one.func for one in ast.walk(self.value) if isinstance(one, ast.Call))
        return any(isinstance(one, ast.Name) and one.id in COUNTING for one in calls)

    @property
    def adds(self) -> bool:
        """Whether something is added there."""
        return any(isinstance(one, ast.Add) for one in ast.walk(self.value))

    @property
    def chooses(self) -> bool:
        """Whether a field of something is taken there."""
        value = self.value
        while True:
            match value:
                case ast.Lambda(body=inner) | ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
                    value = inner
                case ast.Call(func=ast.Attribute(value=inner)) if _looked_up(value) is None:
                    value = inner
                case _:
                    return isinstance(value, ast.Attribute) or _looked_up(value) is not None


class _From(NamedTuple):
    """An expression to follow, in a line, with the lines that called its function."""

    stack: tuple[Line, ...]
    value: ast.expr


@dataclass(frozen=True)
class Slice:
    """Follows names within the files of a framework that were imported."""

    files: frozenset[str]

    def of(self, stack: Sequence[Line]) -> Iterator[Assigned]:
        """Yield the lines that the operands of an operation come from, the nearest first."""
        if stack and (around := scope_of(stack[0])) is not None:
            yield from self._of(stack, around.evaluated(stack[0].columns))

    def chosen_by(self, stack: Sequence[Line], keyword: str) -> Line | None:
        """The line that chose what a call is given by keyword, if another one did."""
        if not stack or (around := scope_of(stack[0])) is None:
            return None
        calls = (one for one in around.nodes(ast.Call) if isinstance(one, ast.Call))
        given = [each.value for call in calls for each in call.keywords if each.arg == keyword]
        if not given or not isinstance(given[0], ast.Name):
            return None
        sources = self._of(stack, given[:1])
        return next((one.line for one in sources if not isinstance(one.value, ast.Name)), None)

    def _of(self, stack: Sequence[Line], values: Sequence[ast.expr]) -> Iterator[Assigned]:
        waiting = deque(_From(tuple(stack), one) for one in values)
        seen: set[tuple[str, int, str, int]] = set()
        while waiting and len(seen) < MOST:
            start = waiting.popleft()
            for found in self._sources(start):
                line, text = found.stack[0], ast.dump(found.value)
                # A function that calls itself has the same line at several depths.
                key = line.file, line.number, text, len(found.stack)
                if key not in seen:
                    seen.add(key)
                    yield Assigned(line, found.value)
                    waiting.append(found)

    def _sources(self, start: _From) -> Iterator[_From]:
        around = scope_of(start.stack[0])
        if around is None:
            return
        for node in _operands(start.value):
            if isinstance(node, ast.Name):
                yield from self._named(start, around, node.id)
            elif (text := _looked_up(node)) is not None:
                yield from _stored(self.files, text)

    def _named(self, start: _From, around: Scope, name: str) -> Iterator[_From]:
        line, callers = start.stack[0], start.stack[1:]
        for function in reversed(around.functions):
            values = [*_assignments(function, name, line.number)]
            for value in values:
                here = Line(line.file, value.lineno, function.name)
                yield _From((here, *callers), value)
            is_given = name in [one.arg for one in parameters(function)]
            if is_given:
                yield from self._given(start, function, name)
            if values or is_given:
                return

    def _given(self, start: _From, function: Function, name: str) -> Iterator[_From]:
        """Yield what callers give for a parameter: those of the stack, or any of the package."""
        for place, caller in enumerate(start.stack[1:], 1):
            values = [*arguments_of(caller, function, name)]
            for value in values:
                here = Line(caller.file, value.lineno, caller.function)
                yield _From((here, *start.stack[place + 1 :]), value)
            if values:
                return
        for caller in _callers(self.files, function.name):
            for value in arguments_of(caller, function, name):
                yield _From((Line(caller.file, value.lineno, caller.function),), value)


def _assignments(function: Function, name: str, before: int) -> Iterator[ast.expr]:
    """Yield what a function gives a name: the last value before a line, and what is added to it."""
    bound: list[ast.expr] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=given))]) if given == name:
                yield node.value
            case ast.Assign(targets=[target], value=value):
                bound += _matched(target, value, name)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                bound += _matched(target, value, name)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                bound += _matched(target, value, name, is_loop=True)
            case ast.AugAssign(target=ast.Name(id=given), value=value) if given == name:
                yield value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=given), attr=method), args=[value]):
                if given == name and method in BUILDING:
                    yield value
    earlier = [one for one in bound if one.lineno < before]
    yield from sorted(earlier, key=lambda one: one.lineno)[-1:] or bound[:1]


def _matched(
    target: ast.expr, value: ast.expr, name: str, *, is_loop: bool = False
) -> Iterator[ast.expr]:
    """Yield what of a value a name gets from an assignment or a loop."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    if not isinstance(target, ast.Tuple):
        return
    values: list[ast.expr] = [value] * len(target.elts)
    match value:
        case ast.Tuple(elts=elements) if len(elements) == len(values):
            values = elements
        case ast.Call(func=ast.Name(id="zip"), args=given) if is_loop and len(given) == len(values):
            values = given
    for one, part in zip(target.elts, values, strict=True):
        yield from _matched(one, part, name, is_loop=is_loop)


def _operands(value: ast.AST) -> Iterator[ast.AST]:
    """Yield the names and the keys that a value depends on, without those of functions.

    Of a keyed value only the key is followed: what holds it holds much else. Keywords say how to
    compute, such as on which device, and indices and ranges which entries are meant.
    """
    if _looked_up(value) is not None or isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.Subscript):
        yield from _operands(value.value)
    elif isinstance(value, ast.Call) and not _is_range(value):
        of_method = [value.func.value] if isinstance(value.func, ast.Attribute) else [value.func]
        for one in (*of_method, *value.args):
            yield from _operands(one)
    elif not isinstance(value, ast.Call):
        for child in ast.iter_child_nodes(value):
            yield from _operands(child)


def _is_range(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "range"


def _looked_up(node: ast.AST) -> str | None:
    """The key that an expression looks up, as a subscript or with ``get``."""
    match node:
        case ast.Subscript(ctx=ast.Load()):
            return key_of(node)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(text)), *_]):
            return text
    return None


@lru_cache(maxsize=256)
def _stored(files: frozenset[str], text: str) -> tuple[_From, ...]:
    """What a framework stores under a key."""
    return tuple(
        _From((Line(file, value.lineno, function.name),), value)
        for file, function in _functions(files, f'"{text}"')
        for node in ast.walk(function)
        for target, value in _stores(node)
        if target == text
    )


def _stores(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Subscript() as target], value=value):
            if (text := key_of(target)) is not None:
                yield text, value
        case ast.Dict(keys=keys, values=values):
            for one, value in zip(keys, values, strict=True):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value, value


@lru_cache(maxsize=256)
def _callers(files: frozenset[str], name: str) -> tuple[Line, ...]:
    """The lines of a framework that call a function of a name."""
    return tuple(
        Line(file, node.lineno, function.name)
        for file, function in _functions(files, f"{name}(")
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
    )


def _functions(files: frozenset[str], text: str) -> Iterator[tuple[str, Function]]:
    """Yield the functions of all files that have a text."""
    for file in sorted(files):
        if text in "".join(getlines(file)):
            yield from ((file, one) for one in functions_of(file))
