"""Edits of a statement to compute with other values."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import edited, expression, parts
from conformance.tracing.source import functions_of, is_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Unit


WORD = re.compile(r"[a-z]{3,}")

ROOTS = {"self", "args", "config", "cfg"}
"""Words in names of values that do not describe the value."""


def read_alike(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that compute with a variable that has a similar name or that nothing reads."""
    unread = _unread(file, unit)
    return _other_variables(
        file, unit, kinds, lambda one, other: one in unread or _is_alike(one, other)
    )


def _unread(file: str, unit: Unit) -> set[str]:
    """The variables that a statement's function assigns and never reads."""
    around = [one for one in functions_of(file) if is_at(one, unit.lineno)]
    names = [node for one in around[-1:] for node in ast.walk(one) if isinstance(node, ast.Name)]
    read = {one.id for one in names if isinstance(one.ctx, ast.Load)}
    return {one.id for one in names} - read


def read_otherwise(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that compute with other values, such as another variable of the same kind."""
    return _other_variables(file, unit, kinds, lambda one, other: not _is_alike(one, other))


def _other_variables(
    file: str, unit: Unit, kinds: Kinds, may_replace: Callable[[str, str], bool]
) -> Iterator[Edited]:
    """Yield edits that replace a variable by another of the same kind, everywhere or once."""
    read: dict[str, list[ast.AST]] = {}
    for part in parts(unit):
        is_loaded = isinstance(getattr(part, "ctx", None), ast.Load)
        if is_loaded and (text := ast.unparse(part)) in kinds:
            read.setdefault(text, []).append(part)
    for text, places in read.items():
        others = [one for one in kinds if one != text and _may_be_meant(one, text, kinds)]
        chosen: Iterable[list[ast.AST]] = (places, *([one] for one in places if len(places) > 1))
        for several in chosen:
            for other in (one for one in others if may_replace(one, text)):
                meant = expression(other)
                words = f"with {other} instead of {text}"
                yield edited(file, unit, [(one, meant) for one in several], words)


def _may_be_meant(one: str, text: str, kinds: Kinds) -> bool:
    """Whether a value can replace another; a number in an object must have a similar name."""
    is_number = kinds[text] in ("int", "float") and not one.isidentifier()
    return kinds[one] == kinds[text] and (not is_number or _is_alike(one, text))


def _is_alike(one: str, other: str) -> bool:
    """Whether the names of two values share a word."""
    words, others = (set(WORD.findall(each.lower())) for each in (one, other))
    return not words.isdisjoint(others - ROOTS)
