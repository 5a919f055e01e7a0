"""Edits that leave out an operation, an argument, parentheses or a whole statement."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from conformance.tracing.edits.calls import COLLECTIVE
from conformance.tracing.edits.edited import (
    SIGNS,
    copied,
    each,
    interleaved,
    is_of_module,
    name_of,
    parts,
    short,
)
from conformance.tracing.edits.operations import UNORDERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit


LEFT_OUT = (
    *("abs", "bitwise_not", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "clone", "cumsum"),
    *("detach", "exp", "expm1", "flip", "float", "floor", "int", "log", "log1p", "log2"),
    *("logical_not", "masked_fill", "nan_to_num", "neg", "ones_like", "pow", "roll", "round"),
    *("rsqrt", "sqrt", "square", "trunc", "zeros_like"),
)
"""Functions whose calls an edit replaces by the first argument; calls of any method are left out.
"""

BOUNDING = ("clamp", "clip")
"""Functions and methods whose last two arguments are bounds."""

SUMS = (ast.Add, ast.Sub)
"""Operators of sums, which bind less tightly than operators of products."""

OPTIONAL = ("group", "mask", "max", "min", "op", "reduction", "weights")
"""Keyword arguments that an edit leaves out of a call."""


def leaving_out(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that leave out an operation, an argument, parentheses or the whole statement."""
    several = [*parts(unit)]
    found = (*map(_left_out, several), _nothing(unit), _decided(unit), *map(_regrouped, several))
    yield from each(file, unit, interleaved(found))


def _left_out(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to one of its operands, or to a call without one argument."""
    if isinstance(node, ast.BinOp):
        sign = SIGNS.get(type(node.op), "an operator")
        yield node, node.left, f"without {sign} {short(node.right)}"
        if isinstance(node.op, UNORDERED):
            yield node, node.right, f"without {short(node.left)} {sign}"
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node, node.operand, f"without {SIGNS.get(type(node.op), 'its sign')}"
    elif isinstance(node, ast.Call):
        name = name_of(node.func)
        given = [one for one in node.args if not isinstance(one, ast.Starred)]
        operands = [*([] if is_of_module(node.func) else [node.func.value]), *given]  # type: ignore[attr-defined]
        is_of_value = not is_of_module(node.func) and ast.unparse(operands[0]) != "self"
        if is_of_value or (name in LEFT_OUT and operands):
            yield node, operands[0], f"without {name}"
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(inner, ast.Call) and not is_of_module(inner.func):
            words = f"without {name_of(inner.func)} and {name}"
            yield node, inner.func.value, words  # type: ignore[attr-defined]
        if COLLECTIVE.match(name) and given:
            yield node, given[0], f"without {name}"
        if name == "where" and len(node.args) == 3:
            yield from ((node, one, f"with {short(one)} always") for one in node.args[1:])
        for place, bound in [*enumerate(node.args)][-2:] if name in BOUNDING else ():
            args = [*node.args[:place], ast.Constant(None), *node.args[place + 1 :]]
            yield node, copied(node, args=args), f"without the bound {short(bound)} of {name}"
        for keyword in filter(_is_optional, node.keywords):
            left = [one for one in node.keywords if one is not keyword]
            yield node, copied(node, keywords=left), f"without {keyword.arg}= of {name}"
    elif isinstance(node, ast.IfExp):
        yield from ((node, one, f"with {short(one)} always") for one in (node.body, node.orelse))


def _decided(unit: Unit) -> Iterator[Other]:
    """Yield edits of the condition of a branch: negated, always true, or always false."""
    if isinstance(unit, (ast.Attribute, ast.BoolOp, ast.Compare, ast.Name, ast.UnaryOp)):
        yield unit, ast.UnaryOp(ast.Not(), unit), "with the opposite condition"
        yield unit, ast.Constant(True), "with a condition that always holds"
        yield unit, ast.Constant(False), "with a condition that never holds"


def _regrouped(node: ast.AST) -> Iterator[Other]:
    """Yield edits of ``a - b / c`` or ``a / c - b`` to ``(a - b) / c``, and the reverse."""
    if not isinstance(node, ast.BinOp):
        return
    left, right, words = node.left, node.right, "with other parentheses"
    if isinstance(left, ast.BinOp) and isinstance(node.op, SUMS) is not isinstance(left.op, SUMS):
        inner = ast.BinOp(left.left, node.op, right)
        last = f"with {SIGNS.get(type(left.op), 'an operator')} {short(left.right)} last"
        yield node, ast.BinOp(inner, left.op, left.right), last
    if isinstance(right, ast.BinOp):
        inner = ast.BinOp(left, node.op, right.left)
        yield node, ast.BinOp(inner, right.op, right.right), words
    if isinstance(left, ast.BinOp):
        inner = ast.BinOp(left.right, node.op, right)
        yield node, ast.BinOp(left.left, left.op, inner), words


def _is_optional(keyword: ast.keyword) -> bool:
    """Whether an edit may leave out an argument; a group given by a variable is deliberate."""
    is_chosen = keyword.arg == "group" and isinstance(keyword.value, ast.Name)
    return keyword.arg in OPTIONAL and not is_chosen


def _nothing(unit: ast.AST) -> Iterator[Other]:
    """Yield the edit that removes a statement, if the statement changes an existing value."""
    read: set[str] = set()
    if isinstance(unit, ast.Assign):
        read = {ast.unparse(one) for one in ast.walk(unit.value) if isinstance(one, ast.expr)}
    is_change = isinstance(unit, ast.Assign) and ast.unparse(unit.targets[0]) in read
    if is_change or isinstance(unit, (ast.AugAssign, ast.Expr)):
        yield unit, ast.Pass(), "without it"
