"""The statements that a programmer may have meant in place of a given one.

The input is a line of a framework's source, with the kinds of the variables of its function. The
output is edits of the line's statement, each with a description.
"""

from __future__ import annotations

import ast
import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from adapters.contract.job import Edit
from conformance.ranks.recording.editing import span_of
from conformance.tracing.source import is_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Unit = ast.stmt | ast.expr
    """A simple statement, or an expression in the header of a compound one."""

    Other = tuple[ast.AST, ast.AST, str]
    """A node of a statement, the node that replaces it in an edit, and the edit in words."""

CONFUSED = (
    *(("max", "min"), ("amax", "amin"), ("argmax", "argmin"), ("maximum", "minimum")),
    *(("clamp_min", "clamp_max"), ("gt", "ge", "lt", "le"), ("eq", "ne"), ("any", "all")),
    *(("logical_and", "logical_or"), ("floor", "ceil"), ("sum", "mean"), ("std", "var")),
    *(("nansum", "nanmean"), ("masked_sum", "masked_mean"), ("zeros_like", "ones_like")),
    *(("SUM", "MEAN", "AVG", "MAX", "MIN"),),
)
"""Groups of easily confused names of functions, methods and constants."""

LEFT_OUT = (
    *("abs", "bitwise_not", "bfloat16", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "clone"),
    *("cumsum", "detach", "double", "exp", "expm1", "flip", "float", "floor", "half", "int", "log"),
    *("log1p", "logical_not", "long", "masked_fill", "nan_to_num", "neg", "pow", "roll", "round"),
    *("rsqrt", "sqrt", "square", "to", "trunc", "type", "log2"),
)
"""Functions and methods that an edit replaces by their first operand."""

BOUNDING = ("clamp", "clip")
"""Functions and methods whose last two arguments are bounds."""

OPTIONAL = ("group", "mask", "max", "min", "op", "reduction", "weights")
"""Keyword arguments that an edit leaves out of a call."""

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt, ast.GtE),
    ast.Gt: (ast.GtE, ast.LtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt, ast.LtE),
    ast.Eq: (ast.NotEq,),
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
}
"""For each operator, the operators that it is easily confused with."""

UNORDERED = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)
"""Commutative operators: swapping operands is no edit, and either operand may be left out."""

SIGNS = {
    getattr(ast, name): sign
    for name, sign in (
        *(("Lt", "<"), ("LtE", "<="), ("Gt", ">"), ("GtE", ">="), ("Eq", "=="), ("NotEq", "!=")),
        *(
            ("Is", "is"),
            ("IsNot", "is not"),
            ("Add", "+"),
            ("Sub", "-"),
            ("Mult", "*"),
            ("Div", "/"),
        ),
        *(("FloorDiv", "//"), ("BitAnd", "&"), ("BitOr", "|"), ("Pow", "**"), ("Mod", "%")),
        *(("MatMult", "@"), ("USub", "-"), ("Invert", "~"), ("Not", "not")),
    )
}
"""Operators as they are written in source code."""

WORD = re.compile(r"[a-z]{3,}")

ROOTS = {"self", "args", "config", "cfg"}
"""Words in names of values that do not describe the value."""


class Edited(NamedTuple):
    """An edit of a statement."""

    edit: Edit
    words: str
    number: int
    """The number of the edited line."""

    passed_by: str = ""
    """The variable that the edited statement no longer reads, or reads detached."""


def units(function: ast.AST, number: int) -> list[Unit]:
    """The innermost statement at a line; for a compound statement, its header's expressions."""
    around = [
        node for node in ast.walk(function) if isinstance(node, ast.stmt) and is_at(node, number)
    ]
    if not around:
        return []
    innermost = max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    if not hasattr(innermost, "body"):
        return [innermost]
    header = (one for one in ast.iter_child_nodes(innermost) if not isinstance(one, ast.stmt))
    several = (one.context_expr if isinstance(one, ast.withitem) else one for one in header)
    return [one for one in several if isinstance(one, ast.expr) and is_at(one, number)]


def done_otherwise(file: str, unit: Unit, kinds: Mapping[str, str]) -> Iterator[Edited]:
    """Yield edits with other operations on the same values, or with neighbouring numbers.

    ``kinds`` are the kinds of the values that the statement can read.
    """
    parts = [*_parts(unit)]
    several = (*map(_operated, parts), *(_swapped(part, kinds) for part in parts))
    for found in (*several, *map(_placed, parts), _assigned(unit, kinds)):
        yield from _each(file, unit, found)


def read_otherwise(file: str, unit: Unit, kinds: Mapping[str, str]) -> Iterator[Edited]:
    """Yield edits that compute with other values, such as another variable of the same kind."""
    parts = [*_parts(unit)]
    for part in parts:
        yield from _each(file, unit, _weighted(part, kinds))
    yield from _other_variables(file, unit, parts, kinds)
    for part in parts:
        yield from _each(file, unit, _detached(part, kinds))


def leaving_out(file: str, unit: Unit, kinds: Mapping[str, str]) -> Iterator[Edited]:
    """Yield edits that leave out an operation, an argument or the whole statement."""
    for found in (*map(_left_out, _parts(unit)), _nothing(unit)):
        yield from _each(file, unit, found)


def _each(file: str, unit: Unit, found: Iterable[Other]) -> Iterator[Edited]:
    return (_edited(file, unit, [(old, new)], words) for old, new, words in found)


def _parts(unit: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a statement, except f-strings and annotations."""
    yield unit
    for name, value in () if _integer(unit) is not None else ast.iter_fields(unit):
        several = value if isinstance(value, list) else [value]
        for one in several:
            is_read = isinstance(one, ast.AST) and not isinstance(one, ast.JoinedStr)
            if is_read and name != "annotation":
                yield from _parts(one)


def _edited(
    file: str, unit: Unit, replaced: Sequence[tuple[ast.AST, ast.AST]], words: str
) -> Edited:
    text = ast.unparse(_replacing(unit, replaced))
    [(old, _), *_] = replaced
    number = getattr(old, "lineno", unit.lineno)
    passed_by = ast.unparse(old) if isinstance(getattr(old, "ctx", None), ast.Load) else ""
    edit = Edit(file, span_of(unit), text)  # type: ignore[arg-type]
    return Edited(edit, words, number, passed_by)


def changed_by(unit: Unit) -> set[str]:
    """The variables that a statement assigns or partly changes."""
    targets = getattr(unit, "targets", [getattr(unit, "target", None)])
    parts = (one for target in targets if target is not None for one in ast.walk(target))
    return {one.id for one in parts if isinstance(one, ast.Name)}


def _replacing(tree: Any, replaced: Sequence[tuple[ast.AST, ast.AST]]) -> Any:
    """A copy of a syntax tree in which some nodes are replaced."""
    for old, new in replaced:
        if tree is old:
            return new
    if isinstance(tree, list):
        return [_replacing(one, replaced) for one in tree]
    if not isinstance(tree, ast.AST):
        return tree
    fields = {name: _replacing(value, replaced) for name, value in ast.iter_fields(tree)}
    return ast.copy_location(type(tree)(**fields), tree)


def _copy(node: Any, **fields: Any) -> Any:
    """A copy of a node with some fields replaced."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def _operated(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to other operations on the same operands."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARED.get(type(node.ops[0]), ()):
            words = f"with {SIGNS[other]} instead of {SIGNS[type(node.ops[0])]}"
            yield node, _copy(node, ops=[other()]), words
    elif isinstance(node, ast.BinOp) and (sign := SIGNS.get(type(node.op))):
        if not isinstance(node.op, UNORDERED):
            swapped = _copy(node, left=node.right, right=node.left)
            yield node, swapped, f"with the operands of {sign} swapped"
        for operator in COMBINED.get(type(node.op), ()):
            yield node, _copy(node, op=operator()), f"with {SIGNS[operator]} instead of {sign}"
        if isinstance(node.op, ast.FloorDiv):
            negative = _copy(node, left=ast.UnaryOp(ast.USub(), node.left))
            yield node, ast.UnaryOp(ast.USub(), negative), "with // rounded up"
    elif isinstance(node, (ast.Attribute, ast.Name)):
        field = "attr" if isinstance(node, ast.Attribute) else "id"
        for name in _confused(getattr(node, field)):
            yield node, _copy(node, **{field: name}), f"with {name} instead of {_name(node)}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        for name in _confused(node.value):
            yield node, ast.Constant(name), f"with {name!r} instead of {node.value!r}"


def _confused(name: str) -> Iterator[str]:
    """Yield the names that a name is easily confused with."""
    return (one for several in CONFUSED if name in several for one in several if one != name)


def _left_out(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to one of its operands, or to a call without one argument."""
    if isinstance(node, ast.BinOp):
        sign = SIGNS.get(type(node.op), "an operator")
        yield node, node.left, f"without {sign} {_short(node.right)}"
        if isinstance(node.op, UNORDERED):
            yield node, node.right, f"without {_short(node.left)} {sign}"
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node, node.operand, f"without {SIGNS.get(type(node.op), 'its sign')}"
    elif isinstance(node, ast.Call):
        name = _name(node.func)
        operands = [*([] if _is_of_module(node.func) else [node.func.value]), *node.args]  # type: ignore[attr-defined]
        if name in LEFT_OUT and operands:
            yield node, operands[0], f"without {name}"
        for place, bound in [*enumerate(node.args)][-2:] if name in BOUNDING else ():
            args = [*node.args[:place], ast.Constant(None), *node.args[place + 1 :]]
            yield node, _copy(node, args=args), f"without the bound {_short(bound)} of {name}"
        for keyword in filter(_is_optional, node.keywords):
            left = [one for one in node.keywords if one is not keyword]
            yield node, _copy(node, keywords=left), f"without {keyword.arg}= of {name}"


def _is_optional(keyword: ast.keyword) -> bool:
    """Whether an edit may leave out an argument; a group given by a variable is deliberate."""
    is_chosen = keyword.arg == "group" and isinstance(keyword.value, ast.Name)
    return keyword.arg in OPTIONAL and not is_chosen


def _swapped(node: ast.AST, kinds: Mapping[str, str]) -> Iterator[Other]:
    """Yield edits of a call that swap two adjacent arguments of one kind."""
    if not isinstance(node, ast.Call):
        return
    for one, other in pairwise(node.args):
        if _kind(one, kinds) == _kind(other, kinds):
            swaps = {one: other, other: one}
            args = [swaps.get(each, each) for each in node.args]
            words = f"with the arguments {_short(one)} and {_short(other)} swapped"
            yield node, _copy(node, args=args), words
    for first, second in combinations(node.keywords, 2):
        kind = _kind(first.value, kinds)
        if kind and kind == _kind(second.value, kinds):
            values = {first: second.value, second: first.value}
            keywords = [_copy(one, value=values.get(one, one.value)) for one in node.keywords]
            words = f"with {first.arg}= and {second.arg}= swapped"
            yield node, _copy(node, keywords=keywords), words


def _kind(node: ast.expr, kinds: Mapping[str, str]) -> str | None:
    """The kind of a variable; None for any other expression."""
    return kinds.get(ast.unparse(node))


def _placed(node: ast.AST) -> Iterator[Other]:
    """Yield edits of a node to other numbers, booleans and positions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value), f"with {not node.value}"
    elif (number := _integer(node)) is not None:
        for other in (number + 1, number - 1):
            yield node, _constant(other), f"with {other} instead of {number}"
    elif isinstance(node, ast.Slice):
        yield from _sliced(node)
    elif isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            is_constant = isinstance(part, (ast.Constant, ast.Slice)) or _integer(part) is not None
            if not is_constant:
                yield from _beside(part)


def _sliced(node: ast.Slice) -> Iterator[Other]:
    """Yield slices that are shifted by one entry, or with one bound moved by one entry."""
    for by in (1, -1) if node.lower or node.upper else ():
        lower, upper = _moved(node.lower, by, at_end=False), _moved(node.upper, by, at_end=True)
        if lower is not node.lower or upper is not node.upper:
            direction = "later" if by > 0 else "earlier"
            yield node, _copy(node, lower=lower, upper=upper), f"with a slice 1 entry {direction}"
    for bound in filter(None, (node.lower, node.upper)):
        if _integer(bound) is None:
            yield from _beside(bound)


def _moved(bound: ast.expr | None, by: int, *, at_end: bool) -> ast.expr | None:
    """A slice's bound moved by one entry; an omitted bound is at the start or end."""
    number = _integer(bound) if bound is not None else 0
    if number is None:
        return _plus(bound, by)
    moved = number + by
    beyond = (moved <= 0 <= number and not at_end) or (moved >= 0 > number and at_end)
    if bound is None:
        return _constant(moved) if (by > 0) is not at_end else None
    return None if beyond else _constant(moved)


def _beside(part: ast.expr) -> Iterator[Other]:
    """Yield edits of a position to the next and the previous one."""
    for by, words in ((1, "one place later"), (-1, "one place earlier")):
        yield part, _plus(part, by), f"with {_short(part)} {words}"


def _plus(part: Any, by: int) -> ast.expr:
    return ast.BinOp(part, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _assigned(unit: ast.AST, kinds: Mapping[str, str]) -> Iterator[Other]:
    """Yield edits of an assignment that assign the same value differently, such as with ``+=``."""
    if isinstance(unit, ast.AugAssign):
        sign = SIGNS.get(type(unit.op), "")
        yield unit, ast.Assign([unit.target], unit.value, lineno=0), f"with = instead of {sign}="
        for other in COMBINED.get(type(unit.op), ()):
            yield unit, _copy(unit, op=other()), f"with {SIGNS[other]}= instead of {sign}="
    elif isinstance(unit, ast.Assign) and ast.unparse(unit.targets[0]) in kinds:
        [target, *_] = unit.targets
        added = ast.AugAssign(target, ast.Add(), unit.value)  # type: ignore[arg-type]
        yield unit, added, "with += instead of ="


def _nothing(unit: ast.AST) -> Iterator[Other]:
    """Yield the edit that removes a statement, if the statement changes an existing value."""
    read: set[str] = set()
    if isinstance(unit, ast.Assign):
        read = {ast.unparse(one) for one in ast.walk(unit.value) if isinstance(one, ast.expr)}
    is_change = isinstance(unit, ast.Assign) and ast.unparse(unit.targets[0]) in read
    if is_change or isinstance(unit, (ast.AugAssign, ast.Expr)):
        yield unit, ast.Pass(), "without it"


def _other_variables(
    file: str, unit: Unit, parts: Sequence[ast.AST], kinds: Mapping[str, str]
) -> Iterator[Edited]:
    """Yield edits that replace a variable by another of the same kind, everywhere or once."""
    read: dict[str, list[ast.AST]] = {}
    for part in parts:
        is_loaded = isinstance(getattr(part, "ctx", None), ast.Load)
        if is_loaded and (text := ast.unparse(part)) in kinds:
            read.setdefault(text, []).append(part)
    for text, places in read.items():
        others = [one for one in kinds if one != text and _may_be_meant(one, text, kinds)]
        chosen: Iterable[list[ast.AST]] = (places, *([one] for one in places if len(places) > 1))
        for several in chosen:
            for other in others:
                meant = ast.parse(other, mode="eval").body
                words = f"with {other} instead of {text}"
                yield _edited(file, unit, [(one, meant) for one in several], words)


def _may_be_meant(one: str, text: str, kinds: Mapping[str, str]) -> bool:
    """Whether a value can replace another; a number in an object must have a similar name."""
    is_number = kinds[text] in ("int", "float") and not one.isidentifier()
    words, others = (set(WORD.findall(each.lower())) for each in (one, text))
    return kinds[one] == kinds[text] and (not is_number or not words.isdisjoint(others - ROOTS))


def _weighted(node: ast.AST, kinds: Mapping[str, str]) -> Iterator[Other]:
    """Yield edits that replace a sum or mean by a mean over a mask."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    summed = node.func.value
    if node.func.attr == "sum" and isinstance(summed, ast.BinOp):
        for mask in (summed.right, summed.left):
            count = _counted(mask, node)
            yield node, ast.BinOp(node, ast.Div(), count), f"divided by the sum of {_short(mask)}"
    if node.func.attr == "mean":
        for text, kind in kinds.items():
            if "mask" in text and " of " in kind:
                mask = ast.parse(text, mode="eval").body
                product = _call(ast.BinOp(summed, ast.Mult(), mask), "sum", node)
                mean = ast.BinOp(product, ast.Div(), _counted(mask, node))
                yield node, mean, f"with a mean over {text}"


def _counted(mask: ast.expr, like: ast.Call) -> ast.expr:
    """The expression for the sum of a mask, clamped to at least 1."""
    clamp = ast.Attribute(_call(mask, "sum", like), "clamp", ast.Load())
    return ast.Call(clamp, [], [ast.keyword("min", ast.Constant(1))])


def _call(of: ast.expr, method: str, like: ast.Call) -> ast.expr:
    return _copy(like, func=ast.Attribute(of, method, ast.Load()))  # type: ignore[no-any-return]


def _detached(node: ast.AST, kinds: Mapping[str, str]) -> Iterator[Other]:
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
        yield one, detached, f"with {_short(one)} detached"


def _integer(node: ast.AST | None) -> int | None:
    """The value of an integer literal, perhaps negative; None for any other expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = _integer(node.operand) if is_negative else None  # type: ignore[union-attr]
    return None if inner is None else -inner


def _constant(number: int) -> ast.expr:
    positive = ast.Constant(abs(number))
    return positive if number >= 0 else ast.UnaryOp(ast.USub(), positive)


def _name(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "a call")


def _is_of_module(function: ast.expr) -> bool:
    """Whether a function belongs to a module, and is not a method of a value."""
    modules = ("torch", "F", "np", "numpy", "torch.nn.functional")
    return not isinstance(function, ast.Attribute) or ast.unparse(function.value) in modules


def _short(node: ast.AST) -> str:
    """A short text for an expression: its name or number, or else only its kind."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return ast.unparse(node)
    if isinstance(node, ast.Call):
        return f"{_name(node.func)}()"
    return _name(node) if isinstance(node, ast.Attribute) else "an operand"
