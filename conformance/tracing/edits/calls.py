"""Edits of a call's arguments."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import (
    copied,
    each,
    expression,
    integer,
    name_of,
    parts,
    short,
)
from conformance.tracing.source import functions_named, functions_of, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit
    from conformance.tracing.source import Function

COLLECTIVE = re.compile("(all_)?(gather|reduce)|broadcast|scatter")
"""Names of operations on tensors of several ranks."""

REDUCTION = re.compile("^reduce$|all_reduce|all_gather|gather_for_metrics")
"""Names of functions that reduce or gather tensors of several ranks."""


def called_otherwise(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits of arguments: from other calls, found by name, set to other modes, or swapped."""
    for call in (one for one in parts(unit) if isinstance(one, ast.Call)):
        for found in (
            _as_elsewhere(call, file),
            _named_alike(call, file, kinds),
            _over_group(call, file),
            _other_modes(call, file),
            swapped(call, kinds),
        ):
            yield from each(file, unit, found)


def _as_elsewhere(call: ast.Call, file: str) -> Iterator[Other]:
    """Yield edits that pass a keyword argument as other calls of the function in the file do."""
    given = {one.arg: ast.unparse(one.value) for one in call.keywords}
    for name, text in _keywords(file, name_of(call.func)):
        if given.get(name) != text:
            yield call, _passing(call, name, text), f"with {name}={text}, as in another call"
    for place, given_text in enumerate(map(_literal, call.args)):
        for text in _literals(file, name_of(call.func), place) if given_text else ():
            if text != given_text:
                words = f"with {text!r} instead of {given_text!r}, as in another call"
                yield call.args[place], ast.Constant(text), words


def _literal(node: ast.expr) -> str | None:
    """The text of a literal; None for any other expression."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _literals(file: str, function: str, place: int) -> tuple[str, ...]:
    """The texts that the calls of a function in a file pass as their n-th argument."""
    found = (_literal(one.args[place]) for one in _calls(file, function) if len(one.args) > place)
    return tuple(dict.fromkeys(one for one in found if one is not None))


@lru_cache(maxsize=1024)
def _keywords(file: str, function: str) -> tuple[tuple[str, str], ...]:
    """The keyword arguments that the calls of a function in a file pass."""
    passed = [
        (one.arg, ast.unparse(one.value))
        for call in _calls(file, function)
        for one in call.keywords
    ]
    return tuple(dict.fromkeys((name, text) for name, text in passed if name is not None))


def _calls(file: str, function: str) -> Iterator[ast.Call]:
    """Yield the calls of a function in a file."""
    for node in (one for outer in functions_of(file) for one in ast.walk(outer)):
        if isinstance(node, ast.Call) and name_of(node.func) == function:
            yield node


def _passing(call: ast.Call, name: str, text: str) -> ast.Call:
    left = [one for one in call.keywords if one.arg != name]
    keywords = [*left, ast.keyword(name, expression(text))]
    return copied(call, keywords=keywords)  # type: ignore[no-any-return]


def _named_alike(call: ast.Call, file: str, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that pass, for a parameter, the variable or attribute of the same name.

    The variable is passed for a keyword argument, an attribute for a parameter that is left out.
    """
    for keyword in call.keywords:
        name, given = keyword.arg, ast.unparse(keyword.value)
        if name is not None and name != given and name in kinds:
            yield call, _passing(call, name, name), f"with {name}={name}"
    passed = {one.arg for one in call.keywords}
    for function in functions_named(file, name_of(call.func)):
        for left in (one.arg for one in parameters(function)[len(call.args) :]):
            for text in _named(file, left) if left not in passed else ():
                yield call, _passing(call, left, text), f"with {left}={text}"


@lru_cache(maxsize=1024)
def _named(file: str, name: str) -> tuple[str, ...]:
    """The attributes in a file that have a name, such as options of a configuration."""
    attributes = (
        node
        for outer in functions_of(file)
        for node in ast.walk(outer)
        if isinstance(node, ast.Attribute) and node.attr == name
    )
    return tuple(dict.fromkeys(map(ast.unparse, attributes)))


def _other_modes(call: ast.Call, file: str) -> Iterator[Other]:
    """Yield edits of a text argument to the other texts that the function compares it with."""
    for function in functions_named(file, name_of(call.func)):
        names = [one.arg for one in parameters(function)]
        given = [
            *zip(names, call.args, strict=False),
            *((one.arg, one.value) for one in call.keywords),
        ]
        for name, value in given:
            modes = _modes(function, name) if name and _literal(value) is not None else ()
            for text in (one for one in modes if one != _literal(value)):
                yield value, ast.Constant(text), f"with {name}={text!r}"


@lru_cache(maxsize=1024)
def _modes(function: Function, parameter: str) -> tuple[str, ...]:
    """The texts with which a function compares a parameter."""
    compared = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == parameter
    )
    constants = (one for node in compared for one in ast.walk(node) if isinstance(one, ast.expr))
    return tuple(dict.fromkeys(filter(None, map(_literal, constants))))


def _over_group(call: ast.Call, file: str) -> Iterator[Other]:
    """Yield edits of a collective to other groups of ranks that the file names."""
    if COLLECTIVE.match(name_of(call.func)):
        for text in _groups(file):
            yield call, _passing(call, "group", text), f"over {text}"


@lru_cache(maxsize=256)
def _groups(file: str) -> tuple[str, ...]:
    """The expressions in a file that are named as groups of ranks."""
    expressions = (
        node
        for outer in functions_of(file)
        for node in ast.walk(outer)
        if isinstance(node, (ast.Call, ast.Attribute, ast.Name))
    )
    return tuple(
        dict.fromkeys(
            ast.unparse(one)
            for one in expressions
            if name_of(one.func if isinstance(one, ast.Call) else one).endswith("group")
        )
    )


@lru_cache(maxsize=256)
def reductions(file: str) -> tuple[tuple[str, bool], ...]:
    """The calls in a file that reduce a value over ranks, and whether they change it in place.

    ``{}`` stands for the value.
    """
    found: dict[str, bool] = {}
    for node in (one for outer in functions_of(file) for one in ast.walk(outer)):
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and REDUCTION.search(name_of(call.func)) and call.args:
            text = ast.unparse(copied(call, args=[ast.Name("VALUE"), *call.args[1:]]))
            text = text.replace("{", "{{").replace("}", "}}").replace("VALUE", "{}")
            found[text] = isinstance(node, ast.Expr)
    return tuple(found.items())


def swapped(call: ast.Call, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that swap two arguments of one kind; positional ones must be adjacent."""
    for one, other in pairwise(call.args):
        if _kind(one, kinds) == _kind(other, kinds):
            swaps = {one: other, other: one}
            args = [swaps.get(each, each) for each in call.args]
            words = f"with the arguments {short(one)} and {short(other)} swapped"
            yield call, copied(call, args=args), words
    for first, second in combinations(call.keywords, 2):
        kind = _kind(first.value, kinds)
        if kind and kind == _kind(second.value, kinds):
            values = {first: second.value, second: first.value}
            keywords = [copied(one, value=values.get(one, one.value)) for one in call.keywords]
            words = f"with {first.arg}= and {second.arg}= swapped"
            yield call, copied(call, keywords=keywords), words


def _kind(node: ast.expr, kinds: Kinds) -> str | None:
    """The kind of a variable or an integer; None for any other expression."""
    return kinds.get(ast.unparse(node)) or (None if integer(node) is None else "int")
