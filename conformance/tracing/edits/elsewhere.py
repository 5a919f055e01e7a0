"""Edits that write an expression as other lines of its file do."""

from __future__ import annotations

import ast
import textwrap
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import each, expression, interleaved, parts
from conformance.tracing.source import functions_of, is_at, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit
    from conformance.tracing.source import Function

COMPOUND = (ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp)
"""Expressions that are compared with each other."""

MOST_ALIKE = 4
"""The largest number of similar expressions that are tried in place of a part of a statement."""

SHORTEST = 10
"""The fewest characters of an expression that can be similar to another."""

LONGEST_SHOWN = 60
"""The most characters that are shown of an expression."""


def written_elsewhere(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits to values that the file assigns elsewhere, or to similar expressions.

    Functions that are variants of each other, such as two policy losses of a file, have the same
    names for the same values.
    """
    around = [one for one in functions_of(file) if is_at(one, unit.lineno)]
    if around:
        yield from each(file, unit, _assigned_elsewhere(file, unit, around[-1]))
        similar = (_similar(part, unit, around[-1]) for part in parts(unit))
        yield from each(file, unit, interleaved(similar))


def _assigned_elsewhere(file: str, unit: Unit, function: Function) -> Iterator[Other]:
    """Yield edits of an assignment to the values that other lines assign to the variable."""
    if not isinstance(unit, ast.Assign):
        return
    target, known = ast.unparse(unit.targets[0]), _bound(function).keys()
    for text, names in _assigned(file).get(target, {}).items():
        if text != ast.unparse(unit.value) and names <= known:
            yield unit.value, expression(text), f"with {_shown(text)}, as elsewhere"


@lru_cache(maxsize=64)
def _assigned(file: str) -> dict[str, dict[str, set[str]]]:
    """The values that a file assigns to each variable, each with the local names in it."""
    found: dict[str, dict[str, set[str]]] = {}
    for function in functions_of(file):
        local = _bound(function).keys()
        for node in (one for one in ast.walk(function) if isinstance(one, ast.Assign)):
            values = found.setdefault(ast.unparse(node.targets[0]), {})
            values[ast.unparse(node.value)] = _read(node.value) & local
    return found


def _read(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


@lru_cache(maxsize=256)
def _bound(function: Function) -> dict[str, int]:
    """The local variables of a function, each with the first line that assigns it."""
    found = dict.fromkeys((one.arg for one in parameters(function)), function.lineno)
    for node in (one for one in ast.walk(function) if isinstance(one, ast.Name)):
        if isinstance(node.ctx, ast.Store):
            found[node.id] = min(node.lineno, found.get(node.id, node.lineno))
    return found


def _similar(node: ast.AST, unit: Unit, function: Function) -> Iterator[Other]:
    """Yield edits of a part of a statement to similar expressions of its function."""
    text = ast.unparse(node) if isinstance(node, COMPOUND) else ""
    if len(text) < SHORTEST:
        return
    bound = _bound(function)
    for other in _alike(text, type(node).__name__, function):
        names = _read(expression(other))
        is_known = all(bound.get(name, 0) < unit.lineno for name in names)
        if is_known and other not in text and text not in other:
            yield node, expression(other), f"with {_shown(other)} instead of {_shown(text)}"


@lru_cache(maxsize=1024)
def _alike(text: str, kind: str, function: Function) -> list[str]:
    """The expressions of one kind in a function that are the most similar to a text."""
    texts = {ast.unparse(one) for one in ast.walk(function) if type(one).__name__ == kind}
    return get_close_matches(text, sorted(texts - {text}), MOST_ALIKE)


def _shown(text: str) -> str:
    return textwrap.shorten(text, LONGEST_SHOWN, placeholder=" …")
