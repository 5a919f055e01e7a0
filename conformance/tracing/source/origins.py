"""The assignment of a number of Python, read off the source of a framework.

No operation made such a number. A line that computes with it has it by a name, which was assigned
in the same function or given to it by its caller, or by the key that it was put under.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.tracing.source.scopes import arguments_of, scope_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line

FURTHEST = 4
"""The most functions that a name is followed through."""


def source_line(line: Line) -> str:
    """The text of a line, which is read where it lies and kept nowhere."""
    return linecache.getline(line.file, line.number).strip()


def origins(stack: Sequence[Line], holding: Sequence[str]) -> Iterator[Line]:
    """Yield the lines that assigned a number, the nearest first.

    ``stack`` begins with the line that computes with it, followed by those that called its
    function; ``holding`` are the variables of that function that hold the number.
    """
    if not stack or (scope := scope_of(stack[0])) is None:
        return
    named = [name for name in scope.names() if name in holding]
    if named:
        for name in named:
            yield from _assigned(stack, name, FURTHEST)
        return
    for line in stack:
        if line.file == stack[0].file and (around := scope_of(line)) is not None:
            for number in scope.stores(around.functions[-1]):
                yield replace(line, number=number)


def chosen_by(stack: Sequence[Line], keyword: str) -> Line | None:
    """The line that chose what a call is given by keyword, if another one did."""
    scope = scope_of(stack[0]) if stack else None
    calls: list[ast.Call] = [] if scope is None else scope.nodes(ast.Call)
    given = [each.value for call in calls for each in call.keywords if each.arg == keyword]
    if not given or not isinstance(given[0], ast.Name):
        return None
    return next(_assigned(stack, given[0].id, FURTHEST), None)


def fields_read(stack: Sequence[Line]) -> set[str]:
    """The names of the fields that lines read, perhaps by a text that `getattr` is given."""
    scopes = [scope for line in stack if (scope := scope_of(line)) is not None]
    attributes = {one.attr for scope in scopes for one in scope.nodes(ast.Attribute)}
    constants = [one.value for scope in scopes for one in scope.nodes(ast.Constant)]
    return attributes | {one for one in constants if isinstance(one, str)}


def _assigned(stack: Sequence[Line], name: str, steps: int) -> Iterator[Line]:
    """Yield where a variable was assigned, in its function, around it, or by a caller."""
    if not stack or not steps or (scope := scope_of(stack[0])) is None:
        return
    line = stack[0]
    if (number := scope.assignment(name)) is not None:
        yield replace(line, number=number)
    elif (function := scope.function_with(name)) is not None and len(stack) > 1:
        caller = stack[1]
        argument = next(arguments_of(caller, function, name), None)
        if argument is None:
            yield caller
        elif isinstance(argument, ast.Name):
            yield from _assigned(stack[1:], argument.id, steps - 1)
            yield replace(caller, number=argument.lineno)
        else:
            yield replace(caller, number=argument.lineno)
