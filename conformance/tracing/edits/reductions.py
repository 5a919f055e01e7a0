"""Edits of the entries over which sums, means and counts are taken."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from conformance.tracing.edits.edited import (
    applied,
    copied,
    each,
    expression,
    integer,
    name_of,
    operand,
    parts,
    short,
)
from conformance.tracing.source import functions_of, is_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit

REDUCING = re.compile("gather|mean|reduce|sum")
"""Parts of names of functions that reduce tensors."""

LENGTHS = re.compile("length|len|size|num|tokens|count|width")
"""Words in names of sizes."""

DIMENSIONS = ("dim", "axis")
"""The keyword arguments for the dimensions of a sum."""


def reduced_otherwise(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits of the entries over which sums, means and counts are taken."""
    several = [*parts(unit)]
    found = (
        *(_weighted(part, kinds) for part in several),
        *map(_averaged, several),
        *(_counted(part, kinds) for part in several),
        *(_as_beside(part, unit, file, kinds) for part in several),
    )
    for edits in found:
        yield from each(file, unit, edits)


def _weighted(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that replace a sum or mean by a mean over a mask."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    summed, sum_of = operand(node), copied(node, func=copied(node.func, attr="sum"))
    if node.func.attr == "sum" and isinstance(summed, ast.BinOp):
        for mask in (summed.right, summed.left):
            mean = ast.BinOp(node, ast.Div(), _count(mask, sum_of))
            yield node, mean, f"divided by the sum of {short(mask)}"
    if node.func.attr == "mean" and summed is not None:
        for mask in map(expression, (one for one in kinds if _is_mask(one, kinds))):
            total = applied(sum_of, ast.BinOp(summed, ast.Mult(), mask))
            mean = ast.BinOp(total, ast.Div(), _count(mask, sum_of))
            yield node, mean, f"with a mean over {ast.unparse(mask)}"


def _is_mask(text: str, kinds: Kinds) -> bool:
    return "mask" in text and " of " in kinds[text]


def _sized(node: ast.AST) -> tuple[str, int] | None:
    """The tensor and dimension whose size an expression is; None for any other expression."""
    of: ast.expr | None = None
    if isinstance(node, ast.Subscript) and name_of(node.value) == "shape":
        of, place = node.value, node.slice
    elif isinstance(node, ast.Call) and name_of(node.func) == "size" and len(node.args) == 1:
        of, [place] = node.func, node.args
    if not isinstance(of, ast.Attribute) or (dimension := integer(place)) is None:
        return None
    return ast.unparse(of.value), dimension


def _as_beside(node: ast.AST, unit: Unit, file: str, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that reduce a tensor as other lines of the function reduce other tensors."""
    around = [one for one in functions_of(file) if is_at(one, unit.lineno)]
    reduced = _reduced(node, kinds)
    is_whole = isinstance(unit, ast.Expr) and unit.value is node
    if reduced is None or is_whole or not around:
        return
    texts = {ast.unparse(node)}
    for other in (one for one in ast.walk(around[-1]) if isinstance(one, ast.Call)):
        like = _reduced(other, kinds)
        text = re.sub(rf"\b{like}\b", reduced, ast.unparse(other))
        if like is not None and kinds[like] == kinds[reduced] and text not in texts:
            texts.add(text)
            yield (
                node,
                expression(text),
                f"with {short(other)} instead of {short(node)}, as for {like}",
            )


def _reduced(node: ast.AST, kinds: Kinds) -> str | None:
    """The only tensor that a call reduces, apart from masks; None for any other expression."""
    if not (isinstance(node, ast.Call) and REDUCING.search(ast.unparse(node.func))):
        return None
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and "mask" not in one.id}
    tensors = [one for one in names if kinds.get(one, "").startswith("numbers")]
    return tensors[0] if len(tensors) == 1 else None


def _shape(text: str, kinds: Kinds) -> str:
    return kinds.get(text, "").partition(" of ")[2]


def _count(mask: ast.expr, sum_of: ast.Call) -> ast.expr:
    """The expression that sums a mask as ``sum_of`` sums a tensor, clamped to at least 1."""
    return expression(f"{ast.unparse(applied(sum_of, mask))}.clamp(min=1)")


def _averaged(node: ast.AST) -> Iterator[Other]:
    """Yield the edit of a mean over tokens to a mean of rows' means, or the reverse."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        means = [ast.unparse(one) for one in map(_as_mean, (node.left, node.right)) if one]
        if len(means) > 1:
            inside = ast.unparse(node).replace(".mean()", "")
            yield node, expression(f"({inside}).mean()"), "with a mean of quotients"
        if (of_rows := _summed(node, constant=-1)) is not None:
            yield node, expression(f"({of_rows}).mean()"), "with a mean of the rows' means"
    elif isinstance(node, ast.Call) and "mean" in name_of(node.func):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(inner, ast.Call) and "mean" in name_of(inner.func):
            left = [one for one in inner.keywords if one.arg not in DIMENSIONS]
            yield node, copied(inner, keywords=left), "with one mean instead of a mean of means"
        elif isinstance(inner, ast.BinOp) and (of_all := _summed(inner)) is not None:
            yield node, expression(of_all), "with one mean instead of a mean of means"
        elif len(node.args) > 1 and not any(one.arg in DIMENSIONS for one in node.keywords):
            keywords = [*node.keywords, ast.keyword("dim", ast.Constant(-1))]
            of_rows = ast.unparse(copied(node, keywords=keywords))
            yield node, expression(f"{of_rows}.mean()"), "with a mean of the rows' means"
            yield node, expression(f"{of_rows}.unsqueeze(-1)"), "with the mean of each row"


def _as_mean(node: ast.expr) -> ast.Call | None:
    """The mean over all entries in an expression, perhaps clamped; None if there is none."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return next((one for one in calls if ast.unparse(one).endswith(".mean()")), None)


def _summed(quotient: ast.BinOp, constant: int | None = None) -> str | None:
    """A quotient of sums, but over another dimension or over all entries; None without sums."""
    sums = [
        one
        for one in ast.walk(quotient)
        if isinstance(one, ast.Call) and name_of(one.func) == "sum"
    ]
    text = ast.unparse(quotient)
    for one in sums:
        is_of_all = not one.args and not one.keywords
        if is_of_all is (constant is None):
            return None
        text = text.replace(
            ast.unparse(one), f"{ast.unparse(one.func)}({'' if constant is None else constant})"
        )
    return text if len(sums) > 1 else None


def _counted(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits of a tensor's size to another count, such as the sum of a mask."""
    sized = _sized(node)
    if sized is not None:
        of, dimension = sized
        masks = (
            one for one in kinds if _is_mask(one, kinds) and _shape(one, kinds) == _shape(of, kinds)
        )
        for mask in dict.fromkeys([of, *masks]):
            counted = expression(f"{mask}.sum({dimension}).clamp(min=1)")
            yield node, counted, f"with a sum of {mask} instead of its shape"
        for name in (one for one in kinds if kinds[one] == "int" and LENGTHS.search(one)):
            yield node, expression(name), f"with {name} instead of a size of {of}"
    if isinstance(node, ast.Call) and name_of(node.func) == "numel":
        total = expression(f"{ast.unparse(node.func).removesuffix('numel')}sum()")
        yield node, total, "with sum instead of numel"
    elif isinstance(node, ast.Call) and name_of(node.func) == "len" and node.args:
        total = expression(f"sum({ast.unparse(node.args[0])})")
        yield node, total, "with sum instead of len"
