"""Runs the functions of a file with one of its statements edited.

The functions are compiled anew with the edited statement and keep their identity, so that all
callers run the edited code. Calls that are already running finish with the old code.
"""

from __future__ import annotations

import ast
import copy
import gc
import tokenize
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract.job import Edit


class Editing:
    """A context in which the functions of a file have an edited statement."""

    held: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Empty, since an edit replaces no values; see `Replacing.held`."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._before: list[tuple[FunctionType, CodeType]] = []

    def __enter__(self) -> Editing:
        codes = {_identity(code): code for code in codes_in(_compiled(self._edit))}
        for function in functions_in([self._edit.file]):
            code, own = codes.get(_identity(function.__code__)), function.__code__
            if code is not None and code != own and code.co_freevars == own.co_freevars:
                self._before.append((function, own))
                function.__code__ = code
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            function, code = self._before.pop()
            function.__code__ = code


def _identity(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _compiled(edit: Edit) -> CodeType:
    """The code of the module, reduced to the function or method that is edited."""
    module = copy.deepcopy(_reduced(edit.file, edit.span[0]))
    _Edited(edit).visit(module)
    code: CodeType = compile(
        ast.fix_missing_locations(module), edit.file, "exec", dont_inherit=True
    )
    return code


@lru_cache(maxsize=64)
def _reduced(file: str, line: int) -> ast.Module:
    """A module with only the function or method at a line, which is fast to compile."""
    with tokenize.open(file) as opened:
        module = ast.parse(opened.read(), file)
    _reduce(module, line)
    return module


def _reduce(outer: ast.Module | ast.ClassDef, line: int) -> None:
    """Leave out code that does not contain a line."""
    inside = [
        node
        for node in outer.body
        if (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or node.lineno <= line <= (node.end_lineno or 0)
    ]
    outer.body = inside or outer.body
    for node in inside:
        if isinstance(node, ast.ClassDef):
            _reduce(node, line)


class _Edited(ast.NodeTransformer):
    """Replaces the node at an edit's span; if the edited function raises, the old body runs."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        [self._statement] = ast.parse(edit.text).body

    def visit(self, node: ast.AST) -> ast.AST:
        """Visit a node, which may be the replaced node or a function that contains it."""
        if span_of(node) == self._edit.span:
            return self._other(node)
        is_replaced_inside = isinstance(node, ast.FunctionDef) and _has(node, self._edit)
        before = copy.deepcopy(node.body) if is_replaced_inside else []  # type: ignore[attr-defined]
        self.generic_visit(node)
        if before and isinstance(node, ast.FunctionDef):
            otherwise = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, before)
            node.body = [ast.copy_location(ast.Try(node.body, [otherwise], [], []), before[0])]
        return node

    def _other(self, node: ast.AST) -> ast.AST:
        is_expression = isinstance(node, ast.expr) and isinstance(self._statement, ast.Expr)
        other: ast.AST = self._statement.value if is_expression else self._statement  # type: ignore[attr-defined]
        for one in ast.walk(other):
            ast.copy_location(one, node)
        return other


def _has(function: ast.FunctionDef, edit: Edit) -> bool:
    """Whether the edited node is in a function's own body, and not in a function inside it."""
    inside = [one for one in ast.walk(function) if isinstance(one, ast.FunctionDef)]
    having = [one for one in inside if one.lineno <= edit.span[0] <= (one.end_lineno or 0)]
    return having == [function] and edit.span[0] >= function.body[0].lineno


def span_of(node: ast.AST) -> tuple[int, ...]:
    """The first and last line and column of a node; empty if the node has no position."""
    names = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return tuple(getattr(node, name) for name in names if hasattr(node, name))


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions that are nested in a code object."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes_in(one)


_known: dict[str, list[FunctionType]] = {}
"""The functions of each file, kept once a search has found some."""


def functions_in(files: Sequence[str]) -> Iterator[FunctionType]:
    """Yield all functions of this process that some files define."""
    unknown = {file for file in files if not _known.get(file)}
    _known.update((file, []) for file in unknown)
    for one in _all_functions() if unknown else ():
        if one.__code__.co_filename in unknown:
            _known[one.__code__.co_filename].append(one)
    for file in files:
        yield from _known[file]


def _all_functions() -> list[FunctionType]:
    is_frozen = gc.get_freeze_count() > 0  # get_objects leaves out frozen objects
    gc.unfreeze()
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    if is_frozen:
        gc.freeze()
    return functions
