"""Where the numbers of a line were assigned, read off the source of a framework.

A number of Python has no operation that made it. Its line has names, which were assigned in the
same function or given to it by its caller.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line

Function = ast.FunctionDef | ast.AsyncFunctionDef

FURTHEST = 3
"""How many assignments a number is followed through."""


def source_line(line: Line) -> str:
    """The text of a line, which is read where it lies and kept nowhere."""
    return linecache.getline(line.file, line.number).strip()


def origins(
    stack: Sequence[Line], holding: Sequence[str] = (), steps: int = FURTHEST
) -> Iterator[Line]:
    """Yield the lines that assigned what a line computes with, the nearest first.

    ``stack`` begins with the line, followed by those that called its function; ``holding`` are the
    names that are known to hold what is looked for.
    """
    if not stack or not steps:
        return
    line, tree = stack[0], _parsed(stack[0].file)
    functions = [*_functions_around(tree, line)] if tree is not None else []
    if not functions:
        return
    read = [*_names(functions[-1], line.number)]
    names = [name for name in read if name in holding] or read
    found = {
        assigned
        for name in names
        for function in functions
        for assigned in _assignments(function, name, line.number)[-1:]
    }
    further = [replace(line, number=number) for number in sorted(found, reverse=True)]
    yield from further
    parameters = {argument.arg for one in functions for argument in _arguments(one)}
    if parameters & {*names} and len(stack) > 1:
        yield stack[1]
        yield from origins(stack[1:], (), steps - 1)
    for assigned in further:
        yield from origins([assigned, *stack[1:]], (), steps - 1)


@lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _functions_around(tree: ast.AST, line: Line) -> Iterator[Function]:
    """Yield the functions that a line is in, the outermost first."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.lineno <= line.number <= (node.end_lineno or 0):
            yield node


def _arguments(function: Function) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _names(function: Function, number: int) -> Iterator[str]:
    """Yield the names that a line reads."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno == number:
            yield node.id


def _assignments(function: Function, name: str, before: int) -> list[int]:
    """The lines of a function before one that assign a name, in their order."""
    lines = {
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        if node.lineno < before
    }
    return sorted(lines)
