"""Edits of a statement to compute with other values."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import (
    LAST,
    SCALAR,
    changed_by,
    copied,
    each,
    edited,
    expression,
    interleaved,
    likeliest,
    parts,
    short,
)
from conformance.tracing.source import functions_of, is_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit
    from conformance.tracing.source import Function


LONG_WORD = re.compile(r"[a-z]{3,}")

PLAIN = {"int", "float"}
"""The kinds of Python's numbers."""


def read_alike(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that compute with a variable that has a similar name."""
    yield from _other_variables(file, unit, kinds, _is_alike)
    yield from _changing_another(file, unit, kinds)


def _changing_another(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that change another variable, with a similar name, in the same way."""
    for text in sorted(changed_by(unit) & kinds.keys()) if isinstance(unit, ast.Assign) else ():
        places = [one for one in parts(unit) if isinstance(one, ast.Name) and one.id == text]
        for other in kinds if len(places) > 1 else ():
            if (
                other != text
                and other.isidentifier()
                and kinds[other] == kinds[text]
                and _is_alike(other, text)
            ):
                renamed = [(one, copied(one, id=other)) for one in places]
                yield edited(file, unit, renamed, f"with {other} changed instead of {text}")


def read_unread(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that compute with a variable that nothing reads, instead or as well."""
    around = [one for one in functions_of(file) if is_at(one, unit.lineno)]
    unread = _unread(around[-1]) if around else frozenset()
    yield from _other_variables(file, unit, kinds, lambda one, _: one in unread)
    for part in (one for one in parts(unit) if isinstance(one, ast.expr)) if unread else ():
        for other in sorted(unread & kinds.keys()):
            for both, words in _combined(part, other, kinds):
                yield edited(file, unit, [(part, expression(both))], words)


@lru_cache(maxsize=256)
def _unread(function: Function) -> frozenset[str]:
    """The variables that a function assigns and never reads."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {one.id for one in names if isinstance(one.ctx, ast.Load)}
    return frozenset(one.id for one in names if not one.id.startswith("_")) - read


def _combined(part: ast.expr, other: str, kinds: Kinds) -> Iterator[tuple[str, str]]:
    """Yield expressions that combine a part of a statement with a value, each with words."""
    text = ast.unparse(part)
    is_computed = isinstance(part, (ast.BinOp, ast.Call, ast.UnaryOp))
    shape, other_shape = (kinds.get(one, "").partition(" of ")[2] for one in (text, other))
    is_alike = kinds.get(text) == kinds[other] or shape == other_shape != ""
    is_read = isinstance(getattr(part, "ctx", None), ast.Load)
    if not is_computed and not (is_alike and is_read):
        return
    for form in _forms(other, kinds) if is_computed else ():
        yield form, f"with {form} instead of {short(part)}"
    if kinds[other].startswith("truths"):
        yield f"({text}) & {other}", f"with {short(part)} & {other}"
        yield f"({text}) & ~{other}", f"with {short(part)} & ~{other}"
        for sign, words in (("", "1"), ("~", "0")):
            where = f"torch.where({sign}{other}, {text}, 0)"
            yield where, f"with {short(part)} where {other} is {words}, else 0"
        return
    if kinds[other].startswith("integers of"):
        yield from _indexed(text, short(part), other, kinds)
    for sign in ("+", "*"):
        yield f"(({text}) {sign} {other})", f"with {short(part)} {sign} {other}"
    for name in ("min", "max"):
        module = "torch." if kinds[other].startswith(("numbers", "integers")) else ""
        yield f"{module}{name}({text}, {other})", f"with {name} of {short(part)} and {other}"


def _forms(other: str, kinds: Kinds) -> Iterator[str]:
    """Yield expressions of a value: itself, a row as a column, and logarithms' exponentials."""
    is_row = re.fullmatch(r"numbers of \(\d+,\)", kinds[other]) is not None
    for form in (other, f"{other}.unsqueeze(-1)") if is_row else (other,):
        yield form
        if "log" in other:
            yield f"{form}.exp()"


def _indexed(text: str, words: str, other: str, kinds: Kinds) -> Iterator[tuple[str, str]]:
    """Yield the entries of a value at indices, alone or with zeros elsewhere, each with words."""
    if not kinds[other].endswith(", 1)"):
        yield f"({text})[{other}]", f"with {words} at {other}"
        return
    entries = f"({text}).gather(1, {other})"
    yield entries, f"with {words} at {other}"
    zeros = f"torch.zeros_like({text})"
    yield f"{zeros}.scatter(1, {other}, {entries})", f"with {words} at {other}, else 0"


def read_otherwise(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that compute with other values, such as another variable of the same kind."""
    variables = _other_variables(file, unit, kinds, lambda one, other: not _is_alike(one, other))
    computed = (_uncomputed(part, kinds) for part in parts(unit))
    several = (interleaved(computed), _other_parts(unit))
    yield from interleaved((variables, *(each(file, unit, found) for found in several)))


def _other_parts(unit: Unit) -> Iterator[Other]:
    """Yield edits that compute with another part of the statement instead of a part."""
    several = [
        one
        for one in parts(unit)
        if isinstance(one, (ast.Call, ast.Subscript))
        and not isinstance(getattr(one, "ctx", None), ast.Store)
    ]
    for one, other in permutations(several, 2):
        is_inside = one in ast.walk(other) or other in ast.walk(one)
        if not is_inside and ast.unparse(one) != ast.unparse(other):
            yield one, copied(other), f"with {short(other)} instead of {short(one)}"


def _uncomputed(part: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that read a tensor, or its negative, where one of the same kind is computed."""
    if not isinstance(part, (ast.BinOp, ast.Call)):
        return
    read = {ast.unparse(one) for one in ast.walk(part) if isinstance(one, ast.expr)} & kinds.keys()
    shapes = {kinds[one] for one in read if kinds[one].startswith("numbers of (")}
    for name in likeliest(kinds, part):
        if kinds[name] in shapes and name not in read:
            yield part, expression(name), f"with {name} instead of {short(part)}"
            yield part, expression(f"-{name}"), f"with -{name} instead of {short(part)}"


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
        likely = (one for one in likeliest(kinds, unit) if one != text)
        others = [one for one in likely if _may_be_meant(one, text, kinds)]
        chosen: Iterable[list[ast.AST]] = (places, *([one] for one in places if len(places) > 1))
        for several in chosen:
            for other in (one for one in others if may_replace(one, text)):
                meant = expression(other)
                words = f"with {other} instead of {text}"
                yield edited(file, unit, [(one, meant) for one in several], words)


def _may_be_meant(one: str, text: str, kinds: Kinds) -> bool:
    """Whether a value can replace another: if it has the same kind, or both are numbers.

    Numbers that an object holds, and numbers of different kinds, must have similar names.
    """
    are_variables = one.isidentifier() and text.isidentifier()
    is_number = kinds[text] in PLAIN and not one.isidentifier()
    if kinds[one] == kinds[text]:
        return not is_number or _is_alike(one, text)
    are_plain = {kinds[one], kinds[text]} <= PLAIN
    are_numbers = all(SCALAR.fullmatch(kinds[each]) for each in (one, text))
    return are_variables and are_numbers and (are_plain or _is_alike(one, text))


def _is_alike(one: str, other: str) -> bool:
    """Whether the last names of two values share a word."""
    words, others = (set(LONG_WORD.findall(LAST.findall(each)[0].lower())) for each in (one, other))
    return not words.isdisjoint(others)
