"""Edits that insert an operation which a statement lacks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import each, expression, parts, short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit

OF_TOKENS = re.compile(r"numbers of \(\d+, \d+\)|numbers of \(\d+,\)")
"""Kinds of tensors that may have an entry for each token."""

SCALAR = re.compile(r"int|float|(numbers|integers) of \(\)")
"""Kinds of values that may be a count or a factor."""

COUNTS = re.compile(
    "accum|batch|count|denom|factor|norm|num|scale|size|steps|tokens|total|world", re.IGNORECASE
)
"""Words in names of counts and factors."""


def inserting(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that insert a shift, a mask, a factor, an addition, exponentials or `detach`."""
    several = [*parts(unit)]
    found = (
        *(_shifted(part, kinds) for part in several),
        *(_detached(part, kinds) for part in several),
        *map(_exponentiated, several),
        _accumulated(unit),
        _multiplied(unit, kinds),
    )
    for each_found in found:
        yield from each(file, unit, each_found)


def _shifted(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that move the entries of a tensor by one token."""
    is_loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    text = ast.unparse(node) if is_loaded else ""
    if OF_TOKENS.fullmatch(kinds.get(text, "")):
        for by, words in ((-1, "earlier"), (1, "later")):
            yield node, expression(f"{text}.roll({by}, -1)"), f"with {text} one token {words}"


def _detached(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that detach an operand from the gradient."""
    is_loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    operands: list[ast.expr] = []
    if is_loaded and kinds.get(ast.unparse(node), "").startswith("numbers"):
        operands = [node]  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp):
        operands = [
            one for one in (node.left, node.right) if isinstance(one, (ast.BinOp, ast.Call))
        ]
    for one in operands:
        detached = ast.Call(ast.Attribute(one, "detach", ast.Load()), [], [])
        yield one, detached, f"with {short(one)} detached"


def _exponentiated(node: ast.AST) -> Iterator[Other]:
    """Yield the edit of a difference of logarithms to one of their exponentials."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if "log" in left and "log" in right:
            difference = expression(f"({left}).exp() - ({right}).exp()")
            yield node, difference, "with exponentials of both operands of -"


def _accumulated(unit: Unit) -> Iterator[Other]:
    """Yield edits of an assignment that add to the value of before, if there is one."""
    if not isinstance(unit, ast.Assign):
        return
    [target, *_] = unit.targets
    text, value = ast.unparse(target), ast.unparse(unit.value)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, (ast.Name, ast.Constant)):
        of, key = ast.unparse(target.value), ast.unparse(target.slice)
        total = expression(f"{of}.get({key}, 0) + ({value})")
    elif isinstance(target, ast.Name):
        total = expression(f"({value}) if {text} is None else {text} + ({value})")
    else:
        return
    yield unit.value, total, "with a sum over iterations"


def _multiplied(unit: Unit, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that multiply or divide the value of a statement by a mask, count or factor."""
    value = getattr(unit, "value", None)
    target = ast.unparse(unit.targets[0]) if isinstance(unit, ast.Assign) else ""
    is_number = kinds.get(target, "numbers").startswith("numbers")
    if value is None or not is_number or not isinstance(unit, (ast.Assign, ast.Return)):
        return
    text, shape = ast.unparse(value), kinds.get(target, "").partition(" of ")[2]
    for name, kind in kinds.items():
        if "mask" in name and kind.partition(" of ")[2] == shape != "":
            yield value, expression(f"({text}) * {name}"), f"multiplied by {name}"
        if SCALAR.fullmatch(kind) and name != target and COUNTS.search(name):
            for sign, words in (("/", "divided"), ("*", "multiplied")):
                yield value, expression(f"({text}) {sign} {name}"), f"{words} by {name}"
