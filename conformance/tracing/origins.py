"""Where a number of Python was assigned, read off the source of a framework.

No operation made such a number. A line that computes with it has it by a name, which was assigned
in the same function or given to it by its caller, or by the key that it was put under.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line

Function = ast.FunctionDef | ast.AsyncFunctionDef

FURTHEST = 4
"""How many functions a name is followed through."""


def source_line(line: Line) -> str:
    """The text of a line, which is read where it lies and kept nowhere."""
    return linecache.getline(line.file, line.number).strip()


def origins(stack: Sequence[Line], holding: Sequence[str]) -> Iterator[Line]:
    """Yield the lines that assigned a number, the nearest first.

    ``stack`` begins with the line that computes with it, followed by those that called its
    function; ``holding`` are the variables of that function that hold the number.
    """
    if not stack or (scope := _scope(stack[0])) is None:
        return
    named = [name for name in scope.names() if name in holding]
    if named:
        for name in named:
            yield from _assigned(stack, name, FURTHEST)
        return
    for line in stack:
        if line.file == stack[0].file and (around := _scope(line)) is not None:
            for number in scope.stores(around.functions[-1]):
                yield replace(line, number=number)


def has_constant(stack: Sequence[Line], number: float) -> bool:
    """Whether a number is written out in the line that a stack begins with."""
    scope = _scope(stack[0]) if stack else None
    constants = [] if scope is None else scope.nodes(ast.Constant)
    return any(type(one.value) in (int, float) and one.value == number for one in constants)


def _assigned(stack: Sequence[Line], name: str, steps: int) -> Iterator[Line]:
    """Yield where a variable was assigned, in its function, around it, or by a caller."""
    if not stack or not steps or (scope := _scope(stack[0])) is None:
        return
    line = stack[0]
    if (number := scope.assignment(name)) is not None:
        yield replace(line, number=number)
    elif (function := scope.function_with(name)) is not None and len(stack) > 1:
        caller = stack[1]
        argument = _argument(caller, function, name)
        if argument is None:
            yield caller
        elif isinstance(argument, ast.Name):
            yield from _assigned(stack[1:], argument.id, steps - 1)
            yield replace(caller, number=argument.lineno)
        else:
            yield replace(caller, number=argument.lineno)


@dataclass(frozen=True)
class _Scope:
    """A line of a file with the functions that it is in, the outermost first."""

    functions: tuple[Function, ...]
    number: int

    def names(self) -> list[str]:
        """The names that the line reads."""
        return [node.id for node in self.nodes(ast.Name) if isinstance(node.ctx, ast.Load)]

    def assignment(self, name: str) -> int | None:
        """The last line before this one that assigns a variable; of what is around, the nearest."""
        for function in reversed(self.functions):
            lines = [
                node.lineno
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and node.id == name
                if isinstance(node.ctx, ast.Store) and node.lineno < self.number
            ]
            if lines:
                return max(lines)
        return None

    def function_with(self, parameter: str) -> Function | None:
        """The innermost function that has a parameter."""
        having = (
            function
            for function in reversed(self.functions)
            if parameter in [argument.arg for argument in _parameters(function)]
        )
        return next(having, None)

    def stores(self, function: Function) -> list[int]:
        """The lines of a function that store under a key that the line looks up."""
        read = {key for node in self.nodes(ast.Subscript) if (key := _key(node)) is not None}
        return [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            if _key(node) in read
        ]

    def nodes(self, kind: type[ast.expr]) -> list[Any]:
        """The expressions of a kind that the line is in or has."""
        return [
            node
            for node in ast.walk(self.functions[-1])
            if isinstance(node, kind) and node.lineno <= self.number <= (node.end_lineno or 0)
        ]


@lru_cache(maxsize=256)
def _scope(line: Line) -> _Scope | None:
    tree = _parsed(line.file)
    if tree is None:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.lineno <= line.number <= (node.end_lineno or 0)
    ]
    return _Scope(tuple(around), line.number) if around else None


@lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _argument(caller: Line, function: Function, parameter: str) -> ast.expr | None:
    """What a caller gives for a parameter; None if that cannot be told from its text."""
    scope = _scope(caller)
    for call in [] if scope is None else scope.nodes(ast.Call):
        callee = call.func.attr if isinstance(call.func, ast.Attribute) else None
        callee = call.func.id if isinstance(call.func, ast.Name) else callee
        if callee != function.name:
            continue
        by_name = {keyword.arg: keyword.value for keyword in call.keywords}
        if parameter in by_name:
            given: ast.expr = by_name[parameter]
            return given
        names = [argument.arg for argument in _parameters(function)]
        is_method = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
        place = names.index(parameter) - is_method
        return next(iter(call.args[place : place + 1]), None)
    return None


def _key(node: ast.Subscript) -> str | None:
    """The text that something is looked up by; None if it is no text."""
    key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
