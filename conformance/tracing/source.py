"""Reads a framework's source to follow numbers of plain Python, which no operation of torch makes.

A line that computes with a Python number refers to it by a name, which was assigned in the same
function or passed by a caller.
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line

Function = ast.FunctionDef | ast.AsyncFunctionDef

EXTENDING = ("append", "extend", "insert")
"""Methods that extend a list."""

FURTHEST = 4
"""The most functions through which a name is followed."""


def source_line(line: Line) -> str:
    """The source text of a line, read from its file."""
    return linecache.getline(line.file, line.number).strip()


def chosen_by(stack: Sequence[Line], keyword: str) -> Line | None:
    """The line that assigned the variable which a call passes by keyword; None if there is none."""
    scope = scope_of(stack[0]) if stack else None
    calls: list[ast.Call] = [] if scope is None else scope.nodes(ast.Call)
    given = [each.value for call in calls for each in call.keywords if each.arg == keyword]
    if not given or not isinstance(given[0], ast.Name):
        return None
    return next(_assigned(stack, given[0].id, FURTHEST), None)


def _assigned(stack: Sequence[Line], name: str, steps: int) -> Iterator[Line]:
    """Yield the lines that assigned a variable: in its function, an outer one, or a caller."""
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


@dataclass(frozen=True)
class Scope:
    """The functions that enclose a line, the outermost first, and the line's number."""

    functions: tuple[Function, ...]
    number: int

    def names(self) -> list[str]:
        """The names that the line reads."""
        return [node.id for node in self.nodes(ast.Name) if isinstance(node.ctx, ast.Load)]

    def assignment(self, name: str) -> int | None:
        """The last earlier line that assigns a variable, in the innermost function that has one."""
        for function in reversed(self.functions):
            lines = [
                node.lineno
                for node in _nodes(function)
                if isinstance(node, ast.Name) and node.id == name
                if isinstance(node.ctx, ast.Store) and node.lineno < self.number
            ]
            if lines:
                return max(lines)
        return None

    def assignments(self) -> Iterator[tuple[str, int]]:
        """Yield the names that the line reads and its function changes, each with a line."""
        names = set(self.names())
        for node in _nodes(self.functions[-1]):
            extended = _extended_by(node)
            if extended in names:
                yield extended, node.lineno  # type: ignore[attr-defined]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
                yield node.id, node.lineno

    def uses(self) -> Iterator[int]:
        """Yield the lines of the function that read what the line's statement changes."""
        statements = self.nodes(ast.stmt)
        simple = (one for one in statements if one.lineno == self.number or not _is_compound(one))
        changed = {name for one in simple for name in _changed_by(one)} - {"self"}
        for node in (one for one in _nodes(self.functions[-1]) if isinstance(one, ast.Name)):
            is_read = isinstance(node.ctx, ast.Load) and node.lineno != self.number
            if is_read and node.id in changed:
                yield node.lineno

    def function_with(self, parameter: str) -> Function | None:
        """The innermost enclosing function with the given parameter."""
        having = (
            function
            for function in reversed(self.functions)
            if parameter in [argument.arg for argument in parameters(function)]
        )
        return next(having, None)

    def nodes(self, kind: type[ast.expr | ast.stmt]) -> list[Any]:
        """The expressions or statements of a kind that overlap the line."""
        return [
            node
            for node in _nodes(self.functions[-1])
            if isinstance(node, kind) and is_at(node, self.number)
        ]


@lru_cache(maxsize=256)
def scope_of(line: Line) -> Scope | None:
    """The scope of a line; None if the line is in no function."""
    around = [one for one in functions_of(line.file) if is_at(one, line.number)]
    return Scope(tuple(around), line.number) if around else None


def _extended_by(node: ast.AST) -> str:
    """The list that a call extends; empty for any other node."""
    function = node.func if isinstance(node, ast.Call) else None
    is_method = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return function.value.id if is_method and function.attr in EXTENDING else ""  # type: ignore[union-attr]


def function_at(line: Line) -> tuple[str, int]:
    """The file and first line of the function around a line, ignoring comprehensions."""
    scope = scope_of(line)
    return line.file, first_line(scope.functions[-1]) if scope else 0


def _is_compound(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


def _changed_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the variables that a statement assigns, or whose object it may change."""
    changed = getattr(statement, "targets", [getattr(statement, "target", None)])
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        changed = [statement.value.func]
    for target in filter(None, changed):
        for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            while isinstance(one, (ast.Attribute, ast.Subscript, ast.Starred)):
                one = one.value
            yield getattr(one, "id", "")


def is_at(node: ast.expr | ast.stmt, number: int) -> bool:
    """Whether a node of the syntax tree overlaps a line."""
    return node.lineno <= number <= (node.end_lineno or 0)


@lru_cache(maxsize=256)
def functions_of(file: str) -> tuple[Function, ...]:
    """The functions of a file, outer before inner ones; none if the file cannot be parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, Function))


@lru_cache(maxsize=1024)
def _nodes(function: Function) -> tuple[ast.AST, ...]:
    """The nodes of a function's syntax tree; kept, as each line of the function searches them."""
    return tuple(ast.walk(function))


def naming(function: Function, name: str) -> dict[int, ast.expr | None]:
    """The lines of a function with a name such as ``actor/loss/mean``, or one of its ends.

    A line may have a longer text, with a prefix or a suffix of the name. Each line comes with the
    named expression, if the name is a key of a dictionary or of a keyword argument.
    """
    parts = "|".join(map(re.escape, {name, *name.split("/")[-2:]} - {""}))
    named = re.compile(rf"(.*[/@])?({parts})(@.*)?")
    found: dict[int, ast.expr | None] = {}
    for node in _nodes(function):
        if isinstance(node, ast.Constant) and named.fullmatch(str(node.value)):
            found.setdefault(node.lineno, None)
        elif isinstance(node, ast.keyword) and named.fullmatch(node.arg or ""):
            found[node.lineno] = node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and named.fullmatch(str(key.value)):
                    found[key.lineno] = value
    return found


def functions_named(file: str, name: str) -> Iterator[Function]:
    """Yield the functions of a name in a file, or in modules from which it imports the name."""
    for one in (file, *_imported_from(file, name)):
        yield from (function for function in functions_of(one) if function.name == name)


@lru_cache(maxsize=256)
def _imported_from(file: str, name: str) -> tuple[str, ...]:
    """The files of the modules from which a file imports a name, in a folder around the file."""
    imports = (
        node
        for node in ast.walk(ast.parse("".join(linecache.getlines(file))))
        if isinstance(node, ast.ImportFrom) and name in [one.name for one in node.names]
    )
    paths = (f"{(one.module or '').replace('.', '/')}.py" for one in imports)
    found = (folder / path for path in paths for folder in Path(file).parents)
    return tuple(str(one) for one in found if one.is_file())


def first_line(function: Function) -> int:
    """The first line of a function, including its decorators."""
    return min(one.lineno for one in (function, *function.decorator_list))


def parameters(function: Function) -> list[ast.arg]:
    """The parameters of a function, except ``*args`` and ``**kwargs``."""
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def arguments_of(caller: Line, function: Function, parameter: str) -> Iterator[ast.expr]:
    """Yield the arguments that a caller passes for a parameter: at its line, or else anywhere."""
    scope = scope_of(caller)
    if scope is None:
        return
    around = [one for one in _nodes(scope.functions[-1]) if isinstance(one, ast.Call)]
    calls: list[ast.Call] = scope.nodes(ast.Call)
    for several in (calls, around):
        given = [_given(call, function, parameter) for call in several]
        if any(given):
            yield from filter(None, given)
            return


def _given(call: ast.Call, function: Function, parameter: str) -> ast.expr | None:
    """The argument that a call passes for a parameter; None if it calls another function."""
    if ast.unparse(call.func).rpartition(".")[2] != function.name:
        return None
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    if parameter in by_name:
        return by_name[parameter]
    names = [argument.arg for argument in parameters(function)]
    is_method = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
    place = names.index(parameter) - is_method
    return next(iter(call.args[place : place + 1]), None)
