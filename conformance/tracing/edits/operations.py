"""Edits of a statement to other operations on the same values, or to neighbouring numbers."""

from __future__ import annotations

import ast
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from conformance.tracing.edits.calls import swapped
from conformance.tracing.edits.edited import (
    SIGNS,
    applied,
    constant,
    copied,
    each,
    edited,
    expression,
    integer,
    name_of,
    operand,
    parts,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit


CONFUSED = (
    *(("max", "min"), ("amax", "amin"), ("argmax", "argmin"), ("maximum", "minimum")),
    *(("clamp_min", "clamp_max"), ("gt", "ge", "lt", "le"), ("eq", "ne"), ("any", "all")),
    *(("logical_and", "logical_or"), ("floor", "ceil"), ("sum", "mean"), ("std", "var")),
    *(("nansum", "nanmean"), ("masked_sum", "masked_mean"), ("zeros_like", "ones_like")),
    *(("SUM", "MEAN", "AVG", "MAX", "MIN"),),
)
"""Groups of easily confused names of functions, methods and constants."""

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt, ast.GtE),
    ast.Gt: (ast.GtE, ast.LtE, ast.Lt, ast.Eq),
    ast.GtE: (ast.Gt, ast.Lt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.Gt),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
"""For each comparison, the replacements that an edit tries: stricter or laxer, and reversed."""

COMBINED: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
}
"""For each operator, the operators that it is easily confused with."""

CHOOSING = ("logical_and", "logical_or", "max", "maximum", "min", "minimum")
"""Names of functions that choose between two operands."""

UNORDERED = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)
"""Commutative operators: swapping operands changes nothing, and either one may be left out."""


def done_twice(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that combine two changes of operations, positions, numbers or argument order."""
    others = [
        other
        for part in parts(unit)
        for found in (_operated(part), _placed(part), _swapped(part, kinds))
        for other in found
    ]
    for (one, new, words), (another, newer, further) in combinations(others, 2):
        if one is not another:
            yield edited(file, unit, [(one, new), (another, newer)], f"{words} and {further}")


def _swapped(part: ast.AST, kinds: Kinds) -> Iterator[Other]:
    return swapped(part, kinds) if isinstance(part, ast.Call) else iter(())


def done_otherwise(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits with other operations on the same values, or with neighbouring numbers.

    ``kinds`` are the kinds of the values that the statement can read.
    """
    several = [*parts(unit)]
    found = (
        *map(_operated, several),
        *map(_nested, several),
        *map(_placed, several),
        *(_chosen(part, kinds) for part in several),
        _assigned(unit, kinds),
        _kept(unit),
    )
    for edits in found:
        yield from each(file, unit, edits)


def _operated(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to other operations on the same operands."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARED.get(type(node.ops[0]), ()):
            words = f"with {SIGNS[other]} instead of {SIGNS[type(node.ops[0])]}"
            yield node, copied(node, ops=[other()]), words
    elif isinstance(node, ast.BinOp) and (sign := SIGNS.get(type(node.op))):
        if not isinstance(node.op, UNORDERED):
            swapped = copied(node, left=node.right, right=node.left)
            yield node, swapped, f"with the operands of {sign} swapped"
        for operator in COMBINED.get(type(node.op), ()):
            yield node, copied(node, op=operator()), f"with {SIGNS[operator]} instead of {sign}"
        if isinstance(node.op, ast.Pow) and _operand_of_sum(node.left) is not None:
            powers = copied(node, left=_operand_of_sum(node.left))
            yield node, applied(node.left, powers), "with ** before the sum"  # type: ignore[arg-type]
        if isinstance(node.op, ast.FloorDiv):
            negative = copied(node, left=ast.UnaryOp(ast.USub(), node.left))
            yield node, ast.UnaryOp(ast.USub(), negative), "with // rounded up"
    elif isinstance(node, ast.keyword):
        for name in _confused(node.arg or ""):
            yield node, copied(node, arg=name), f"with {name}= instead of {node.arg}="
    elif isinstance(node, (ast.Attribute, ast.Name)):
        field = "attr" if isinstance(node, ast.Attribute) else "id"
        for name in _confused(getattr(node, field)):
            yield node, copied(node, **{field: name}), f"with {name} instead of {name_of(node)}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        for name in _confused(node.value):
            yield node, ast.Constant(name), f"with {name!r} instead of {node.value!r}"


def _nested(node: ast.AST) -> Iterator[Other]:
    """Yield edits that apply two operations in another order, or choose the other value."""
    if isinstance(node, ast.BoolOp):
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        words = f"with {SIGNS[type(operator)]} instead of {SIGNS[type(node.op)]}"
        yield node, copied(node, op=operator), words
    elif isinstance(node, ast.Call):
        inner = operand(node)
        if isinstance(inner, ast.Call) and (innermost := operand(inner)) is not None:
            swapped = applied(inner, applied(node, innermost))
            yield node, swapped, f"with {name_of(inner.func)} after {name_of(node.func)}"
        if name_of(node.func) == "ones_like" and node.args:
            of = ast.unparse(node.args[0])
            yield node, expression(f"({of} - {of}.detach()).exp()"), "with ones with a gradient"
        if name_of(node.func) == "where" and len(node.args) == 3:
            condition, one, other = node.args
            swapped = copied(node, args=[condition, other, one])
            yield node, swapped, "with the values of where swapped"


def _chosen(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that choose between two operands by a condition."""
    is_operator = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))
    if isinstance(node, ast.Call) and name_of(node.func) in CHOOSING:
        operands = node.args
    else:
        operands = [node.left, node.right] if is_operator else []  # type: ignore[attr-defined]
    if isinstance(node, ast.Call) and name_of(node.func) == "where" and len(node.args) == 3:
        yield from _positive(node.args[0], kinds)
    elif isinstance(node, ast.keyword) and node.arg == "condition":
        yield from _positive(node.value, kinds)
    if len(operands) == 2:
        one, other = operands
        read = {ast.unparse(each) for each in operands}
        for name in (
            each for each in kinds if each not in read and kinds[each].startswith("truths")
        ):
            for first, second in ((one, other), (other, one)):
                args = f"{name}, {ast.unparse(first)}, {ast.unparse(second)}"
                chosen = expression(f"torch.where({args})")
                yield node, chosen, f"with {short(first)} where {name}, else {short(second)}"


def _positive(condition: ast.expr, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that replace a condition by one on the sign of a tensor."""
    for name in (one for one in kinds if kinds[one].startswith("numbers of (")):
        for sign in (">", "<"):
            words = f"with the first value where {name} {sign} 0"
            yield condition, expression(f"{name} {sign} 0"), words


def _operand_of_sum(node: ast.expr) -> ast.expr | None:
    """The value that an expression sums or averages; None for any other expression."""
    is_sum = isinstance(node, ast.Call) and name_of(node.func) in ("sum", "mean")
    return operand(node) if is_sum else None  # type: ignore[arg-type]


def _confused(name: str) -> Iterator[str]:
    """Yield the names that a name is easily confused with."""
    return (one for several in CONFUSED if name in several for one in several if one != name)


def _placed(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to other numbers, booleans and positions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value), f"with {not node.value}"
    elif (number := integer(node)) is not None:
        for other in (number + 1, number - 1):
            yield node, constant(other), f"with {other} instead of {number}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        others = (1 - node.value,) if node.value in (0, 1) else (node.value / 2, node.value * 2)
        for factor in others:
            yield node, ast.Constant(factor), f"with {factor} instead of {node.value}"
    elif isinstance(node, ast.Slice):
        yield from _sliced(node)
    elif isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            is_constant = isinstance(part, (ast.Constant, ast.Slice)) or integer(part) is not None
            if not is_constant:
                yield from _beside(part)


def _sliced(node: ast.Slice) -> Iterator[Other]:
    """Yield slices that are shifted by one entry, or with one bound moved by one entry."""
    for by in (1, -1) if node.lower or node.upper else ():
        lower, upper = _moved(node.lower, by, at_end=False), _moved(node.upper, by, at_end=True)
        if lower is not node.lower or upper is not node.upper:
            direction = "later" if by > 0 else "earlier"
            yield node, copied(node, lower=lower, upper=upper), f"with a slice 1 entry {direction}"
    for bound in filter(None, (node.lower, node.upper)):
        if integer(bound) is None:
            yield from _beside(bound)


def _moved(bound: ast.expr | None, by: int, *, at_end: bool) -> ast.expr | None:
    """A slice's bound moved by one entry; an omitted bound is at the start or end."""
    number = integer(bound) if bound is not None else 0
    if number is None:
        return _plus(bound, by)
    moved = number + by
    beyond = (moved <= 0 <= number and not at_end) or (moved >= 0 > number and at_end)
    if bound is None:
        return constant(moved) if (by > 0) is not at_end else None
    return None if beyond else constant(moved)


def _beside(part: ast.expr) -> Iterator[Other]:
    """Yield edits of a position to the next and the previous one."""
    for by, words in ((1, "one place later"), (-1, "one place earlier")):
        yield part, _plus(part, by), f"with {short(part)} {words}"


def _plus(part: Any, by: int) -> ast.expr:
    return ast.BinOp(part, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _assigned(unit: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that assign the same value differently, with ``+=`` or to swapped variables."""
    if isinstance(unit, ast.AugAssign):
        sign = SIGNS.get(type(unit.op), "")
        yield unit, ast.Assign([unit.target], unit.value, lineno=0), f"with = instead of {sign}="
        for other in COMBINED.get(type(unit.op), ()):
            yield unit, copied(unit, op=other()), f"with {SIGNS[other]}= instead of {sign}="
    elif isinstance(unit, ast.Assign) and isinstance(unit.targets[0], ast.Tuple):
        names = unit.targets[0].elts
        for one, two in pairwise(names):
            swaps = {one: two, two: one}
            target = copied(unit.targets[0], elts=[swaps.get(each, each) for each in names])
            yield unit.targets[0], target, f"with {short(one)} and {short(two)} swapped"
    elif isinstance(unit, ast.Assign) and _value_of(unit.targets[0]) in kinds:
        [target, *_] = unit.targets
        added = ast.AugAssign(target, ast.Add(), unit.value)  # type: ignore[arg-type]
        yield unit, added, "with += instead of ="


def _kept(unit: ast.AST) -> Iterator[Other]:
    """Yield edits that keep a result which the statement loses, such as that of a changed copy."""
    call = unit.value if isinstance(unit, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        changed, name = call.func.value, call.func.attr
        is_changed_itself = isinstance(changed, ast.Name) and name.endswith("_")
        if isinstance(changed, (ast.Name, ast.Subscript)) and not is_changed_itself:
            kept = copied(call, func=copied(call.func, attr=name.rstrip("_")))
            text = f"{ast.unparse(changed)} = {ast.unparse(kept)}"
            yield unit, ast.parse(text).body[0], f"with its result assigned to {short(changed)}"
    target = unit.targets[0] if isinstance(unit, ast.Assign) else getattr(unit, "target", None)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript):
        if not _are_conditions(target.slice, target.value.slice):
            return
        of, first = ast.unparse(target.value.value), ast.unparse(target.value.slice)
        second = ast.unparse(target.slice).replace(f"[{first}]", "")
        both = expression(f"{of}[({first}) & ({second})]")
        yield target, copied(both, ctx=ast.Store()), f"with both conditions in one index of {of}"


def _are_conditions(*indices: ast.expr) -> bool:
    """Whether indices may be conditions: neither slices nor constants, such as keys."""
    return not any(isinstance(one, (ast.Slice, ast.Tuple, ast.Constant)) for one in indices)


def _value_of(target: ast.expr) -> str:
    """The variable that an assignment changes, perhaps only in part."""
    return ast.unparse(target.value if isinstance(target, ast.Subscript) else target)
