"""Edits of a statement: the replaced node, the new text and a description."""

from __future__ import annotations

import ast
import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from adapters.contract.job import Edit
from conformance.ranks.recording.editing import span_of
from conformance.tracing.source import is_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Unit = ast.stmt | ast.expr
    """A simple statement, or an expression in the header of a compound statement."""

    Other = tuple[ast.AST, ast.AST, str]
    """A node of a statement, the node that replaces it in an edit, and the edit in words."""

    Kinds = Mapping[str, str]
    """The kind of each value that a statement can read, by the expression for the value."""

_Item = TypeVar("_Item")

SCALAR = re.compile(r"int|float|(numbers|integers) of \(\)")
"""Kinds of values that may be a count or a factor."""

WORD = re.compile(r"[a-z]{2,}")

LAST = re.compile(r"[^.\[]*$")
"""Matches the last name in an expression such as ``self.config.clip``."""

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
        *(("And", "and"), ("Or", "or")),
    )
}
"""Operators as they are written in source code."""


class Edited(NamedTuple):
    """An edit of a statement."""

    edit: Edit
    words: str
    number: int
    """The number of the edited line."""

    passed_by: str = ""
    """The variable that the edited statement no longer reads, or reads detached."""


Sort: TypeAlias = "Callable[[str, Unit, Kinds], Iterator[Edited]]"
"""A function that yields edits of one sort, given the file, a statement and its values."""


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


def interleaved(several: Iterable[Iterator[_Item]]) -> Iterator[_Item]:
    """Yield the first item of each iterator, then the second items, and so on."""
    waiting = deque(several)
    while waiting:
        one = waiting.popleft()
        for item in islice(one, 1):
            yield item
            waiting.append(one)


def likeliest(kinds: Kinds, node: ast.AST) -> list[str]:
    """The values that an expression can read, first the values that it is likeliest to lack.

    These are the values that the expression reads, then values whose names share a word with it,
    then variables.
    """
    read = {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.expr)}
    words = {word for text in read for word in WORD.findall(text.lower())}

    def place(text: str) -> int:
        is_alike = not words.isdisjoint(WORD.findall(LAST.findall(text)[0].lower()))
        return 0 if text in read else 1 if is_alike else 2 if text.isidentifier() else 3

    return sorted(kinds, key=place)


def each(file: str, unit: Unit, found: Iterable[Other]) -> Iterator[Edited]:
    """Yield the edits that replace one node each."""
    return (edited(file, unit, [(old, new)], words) for old, new, words in found)


def edited(
    file: str, unit: Unit, replaced: Sequence[tuple[ast.AST, ast.AST]], words: str
) -> Edited:
    """The edit of a statement that replaces some of its nodes."""
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
            return _replacing(new, [one for one in replaced if one[0] is not old])
    if isinstance(tree, list):
        return [_replacing(one, replaced) for one in tree]
    if not isinstance(tree, ast.AST):
        return tree
    fields = {name: _replacing(value, replaced) for name, value in ast.iter_fields(tree)}
    return ast.copy_location(type(tree)(**fields), tree)


def parts(unit: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a statement, except f-strings and annotations."""
    yield unit
    for name, value in () if integer(unit) is not None else ast.iter_fields(unit):
        several = value if isinstance(value, list) else [value]
        for one in several:
            is_read = isinstance(one, ast.AST) and not isinstance(one, ast.JoinedStr)
            if is_read and name != "annotation":
                yield from parts(one)


def copied(node: Any, **fields: Any) -> Any:
    """A copy of a node with some fields replaced."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def integer(node: ast.AST | None) -> int | None:
    """The value of an integer literal, perhaps negative; None for any other expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = integer(node.operand) if is_negative else None  # type: ignore[union-attr]
    return None if inner is None else -inner


def constant(number: int) -> ast.expr:
    """The literal of an integer."""
    positive = ast.Constant(abs(number))
    return positive if number >= 0 else ast.UnaryOp(ast.USub(), positive)


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "a call")


def short(node: ast.AST) -> str:
    """A short text for an expression: its name or number, or else only its kind."""
    if isinstance(node, (ast.Name, ast.Constant)) or integer(node) is not None:
        return ast.unparse(node)
    if isinstance(node, ast.Call):
        return f"{name_of(node.func)}()"
    return name_of(node) if isinstance(node, ast.Attribute) else "an operand"


def expression(text: str) -> ast.expr:
    """The syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def is_of_module(function: ast.expr) -> bool:
    """Whether a function belongs to a module, and is not a method of a value."""
    modules = ("torch", "F", "np", "numpy", "torch.nn.functional")
    return not isinstance(function, ast.Attribute) or ast.unparse(function.value) in modules


def operand(call: ast.Call) -> ast.expr | None:
    """The value that a call computes with: a method's object or a function's first argument."""
    if is_of_module(call.func):
        return call.args[0] if call.args else None
    return call.func.value  # type: ignore[attr-defined, no-any-return]


def applied(call: ast.Call, operand: ast.expr) -> Any:
    """A copy of a call that computes with another value."""
    if is_of_module(call.func):
        return copied(call, args=[operand, *call.args[1:]])
    return copied(call, func=copied(call.func, value=operand))
