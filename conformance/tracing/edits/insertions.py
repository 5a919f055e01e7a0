"""Edits that insert an operation which a statement lacks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from conformance.tracing.edits.calls import reductions
from conformance.tracing.edits.edited import (
    SCALAR,
    SIGNS,
    each,
    expression,
    interleaved,
    likeliest,
    name_of,
    operand,
    parts,
    short,
)
from conformance.tracing.source import functions_of, is_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.edits.edited import Edited, Kinds, Other, Unit

OF_TOKENS = re.compile(r"numbers of \(\d+, \d+\)|numbers of \(\d+,\)")
"""Kinds of tensors that may have an entry for each token."""

COUNTS = re.compile(
    "accum|batch|beta|coef|count|denom|discount|factor|gamma|lambda|norm|num|scale|size|steps"
    "|temperature|tokens|total|weight|world",
    re.IGNORECASE,
)
"""Words in names of counts and factors."""

STACKING = ("cat", "concat", "concatenate", "stack", "tensor")
"""Names of functions that make a tensor of a list."""

RAISING = ("square", "sqrt", "exp", "log", "abs")
"""Methods of a tensor for powers, exponentials, logarithms and sizes."""

REDUCING = re.compile("sum|mean|max|min|amax|amin|std|var|norm|.*reduce.*")
"""Names of operations that reduce many entries to few."""


KEPT = ("keepdim", "keepdims")
"""The keyword arguments with which a sum keeps its dimension."""


def detaching(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that detach an operand from the gradient."""
    yield from each(file, unit, interleaved(_detached(part, kinds) for part in parts(unit)))


def scaling(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that insert a mask, a factor, a sign or a 1."""
    several, read = [*parts(unit)], ast.unparse(unit)
    found = (
        _negated(unit),
        _increased(unit, kinds),
        *(_masked(part, kinds) for part in several),
        _multiplied(unit, kinds),
        *(_scaled(part, read, kinds) for part in several),
    )
    yield from each(file, unit, interleaved(found))


def adding(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that add a value, keep one for masked entries, or require a further condition."""
    kept = (_otherwise_kept(part, unit, kinds) for part in parts(unit))
    restricted = (_restricted(part, unit, file, kinds) for part in parts(unit))
    yield from each(file, unit, interleaved((_added(unit, kinds), *kept, *restricted)))


def inserting(file: str, unit: Unit, kinds: Kinds) -> Iterator[Edited]:
    """Yield edits that insert a reduction, a shift, a power, a reversal or a sum of iterations."""
    several = [*parts(unit)]
    found = (
        _reduced(file, unit),
        *(_shifted(part, kinds) for part in several),
        *map(_exponentiated, several),
        _accumulated(unit),
        *(_raised(part, kinds) for part in several),
        *map(_reversed, several),
        *map(_less_own_entry, several),
    )
    yield from each(file, unit, interleaved(found))


def _reversed(node: ast.AST) -> Iterator[Other]:
    """Yield edits that reverse a stacked list."""
    if isinstance(node, ast.Call) and name_of(node.func) in STACKING and node.args:
        reverse = expression(f"({ast.unparse(node.args[0])})[::-1]")
        yield node.args[0], reverse, f"with {short(node.args[0])} in reverse order"


def _less_own_entry(node: ast.AST) -> Iterator[Other]:
    """Yield the edit that subtracts each entry itself from a sum which keeps its dimension."""
    if isinstance(node, ast.Call) and name_of(node.func) == "sum":
        summed, is_kept = operand(node), any(one.arg in KEPT for one in node.keywords)
        if summed is not None and is_kept:
            yield node, ast.BinOp(node, ast.Sub(), summed), "with the sum of the other entries"


def _reduced(file: str, unit: Unit) -> Iterator[Other]:
    """Yield edits that reduce a statement's value over ranks, as other calls in the file do."""
    value = getattr(unit, "value", None)
    if value is None or not isinstance(unit, (ast.Assign, ast.Return)):
        return
    for text, is_in_place in reductions(file):
        if not is_in_place:
            words = f"with {text.format('its value')}, as in another call"
            yield value, expression(text.format(f"({ast.unparse(value)})")), words
        elif isinstance(unit, ast.Assign) and isinstance(unit.targets[0], ast.Name):
            given = text.format(unit.targets[0].id)
            call = ast.Expr(expression(given))
            both = ast.If(ast.Constant(True), [unit, call], [])
            yield unit, both, f"followed by {given}, as elsewhere"


def _masked(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that mask the values that an operation reduces."""
    if not (isinstance(node, ast.Call) and REDUCING.fullmatch(name_of(node.func))):
        return
    inside = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for one in (*inside, *node.args[:1]):
        kind = kinds.get(ast.unparse(one), "")
        for name in _masks(kinds, kind.partition(" of ")[2]):
            masked = ast.BinOp(one, ast.Mult(), expression(name))
            yield one, masked, f"with {short(one)} multiplied by {name}"


def _scaled(node: ast.AST, statement: str, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that insert a factor or divisor into a product, quotient or sum.

    The inserted value is a count by its name, a value of an operand's kind, or a tensor that the
    statement reads. In a sum, one operand is multiplied by a count or a mask.
    """
    if not isinstance(node, ast.BinOp):
        return
    operands = [node.left, node.right]
    shapes = {kinds.get(ast.unparse(one)) for one in operands}
    other = ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult()
    for name in likeliest(kinds, node):
        kind = kinds[name]
        is_count = kind in ("int", "float") and COUNTS.search(name) is not None
        is_factor = is_count or kind in shapes or (name in statement and kind.startswith("numbers"))
        if isinstance(node.op, (ast.Mult, ast.Div)) and is_factor:
            for operator in (other,) if name in ast.unparse(node) else (node.op, other):
                scaled = ast.BinOp(node, operator, expression(name))
                yield node, scaled, f"with {SIGNS[type(operator)]} {name} as well"
        elif isinstance(node.op, (ast.Add, ast.Sub)) and (is_count or "mask" in name):
            for one in (each for each in operands if not isinstance(each, ast.Constant)):
                product = ast.BinOp(one, ast.Mult(), expression(name))
                yield one, product, f"with {short(one)} multiplied by {name}"


def _negated(unit: Unit) -> Iterator[Other]:
    """Yield the edit of a statement's value to its opposite."""
    value = getattr(unit, "value", None)
    if isinstance(unit, (ast.Assign, ast.Return)) and isinstance(value, (ast.BinOp, ast.Call)):
        yield value, ast.UnaryOp(ast.USub(), value), "with the opposite sign"


def _raised(node: ast.AST, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that call one of `RAISING` on an operand, or take 1 minus an argument."""
    if isinstance(node, ast.BinOp):
        for one in (node.left, node.right):
            is_tensor = kinds.get(ast.unparse(one), "").startswith("numbers")
            for name in RAISING if is_tensor else ():
                applied = ast.Call(ast.Attribute(one, name, ast.Load()), [], [])
                yield one, applied, f"with {name} of {short(one)}"
    elif isinstance(node, ast.Call):
        for one in node.args:
            if kinds.get(ast.unparse(one), "").startswith("numbers"):
                complement = ast.BinOp(ast.Constant(1), ast.Sub(), one)
                yield one, complement, f"with 1 - {short(one)}"


def _increased(unit: Unit, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that add 1 to the number that a statement assigns, or subtract 1."""
    value = getattr(unit, "value", None)
    target = ast.unparse(unit.targets[0]) if isinstance(unit, ast.Assign) else ""
    if value is not None and kinds.get(target, "").startswith(("int", "float", "numbers")):
        for operator, words in ((ast.Add(), "plus 1"), (ast.Sub(), "minus 1")):
            yield value, ast.BinOp(value, operator, ast.Constant(1)), words


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
    """Yield edits that insert exponentials into a difference of logarithms, or around it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if "log" in left and "log" in right:
            difference = expression(f"({left}).exp() - ({right}).exp()")
            yield node, difference, "with exponentials of both operands of -"
            yield node, expression(f"({left} - {right}).exp()"), "with the exponential of -"


def _accumulated(unit: Unit) -> Iterator[Other]:
    """Yield the edit that makes an assignment add to the variable's previous value, if any."""
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
    for name in _masks(kinds, shape):
        yield value, expression(f"({text}) * {name}"), f"multiplied by {name}"
    read = {ast.unparse(one) for one in ast.walk(value) if isinstance(one, ast.expr)}
    for name in likeliest(kinds, unit):
        kind = kinds[name]
        is_count = SCALAR.fullmatch(kind) is not None and COUNTS.search(name) is not None
        if name != target and (is_count or (name in read and kind == kinds.get(target))):
            for sign, words in (("/", "divided"), ("*", "multiplied")):
                yield value, expression(f"({text}) {sign} {name}"), f"{words} by {name}"


def _added(unit: Unit, kinds: Kinds) -> Iterator[Other]:
    """Yield edits that add a variable of the same kind, subtract it, or multiply by it."""
    value = getattr(unit, "value", None)
    kind = kinds.get(ast.unparse(unit.targets[0]), "") if isinstance(unit, ast.Assign) else ""
    if not isinstance(unit, (ast.Assign, ast.Return)) or value is None:
        return
    text, read = ast.unparse(value), {ast.unparse(one) for one in ast.walk(value)}
    for name in likeliest(kinds, value):
        is_alike = kinds[name] == kind or (not kind and name in read)
        for sign in ("+", "-", "*") if is_alike and kinds[name].startswith("numbers of (") else ():
            yield value, expression(f"({text}) {sign} {name}"), f"with {sign} {name} as well"


def _otherwise_kept(node: ast.AST, unit: Unit, kinds: Kinds) -> Iterator[Other]:
    """Yield edits of a product with a mask that keep another value where the mask is 0."""
    mask = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else None
    text = "" if mask is None else ast.unparse(mask)
    for name in likeliest(kinds, unit) if "mask" in text else ():
        if kinds[name].startswith("numbers of (") and "mask" not in name:
            both = expression(f"{ast.unparse(node)} + {name} * (1 - {text})")
            yield node, both, f"with {name} where {text} is 0"


def _restricted(node: ast.AST, unit: Unit, file: str, kinds: Kinds) -> Iterator[Other]:
    """Yield edits of a tensor's condition that also require another of the function's conditions.

    The other condition is also tried reversed, as a bound may be meant for the other sign.
    """
    around = [one for one in functions_of(file) if is_at(one, unit.lineno)]
    if not (_compares_tensor(node, kinds) and around):
        return
    known = {ast.unparse(node)}
    for other in (one for one in ast.walk(around[-1]) if _compares_tensor(one, kinds)):
        left, [right] = ast.unparse(other.left), other.comparators
        for sign in (">", "<"):
            text = f"{left} {sign} {ast.unparse(right)}"
            if text not in known and left not in ast.unparse(node):
                known.add(text)
                yield node, expression(f"({ast.unparse(node)}) & ({text})"), f"only where {text}"


def _compares_tensor(node: ast.AST, kinds: Kinds) -> TypeGuard[ast.Compare]:
    """Whether an expression compares the entries of a tensor with one value."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return False
    return kinds.get(ast.unparse(node.left), "").startswith("numbers of (")


def _masks(kinds: Kinds, shape: str) -> Iterator[str]:
    """Yield the masks and conditions of a shape."""
    for name, kind in kinds.items():
        is_mask = "mask" in name or kind.startswith("truths")
        if is_mask and kind.partition(" of ")[2] == shape != "":
            yield name
