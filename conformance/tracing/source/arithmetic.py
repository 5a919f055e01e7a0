"""Where plain Python goes on with a number that was read out of a tensor.

No operation shows what becomes of it. The lines that may change it are read off the source: of the
function that read it what follows, and then of those that called that function.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.tracing.source.scopes import scope_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import Line

SCALING = (ast.Mult, ast.Div)

AVERAGING = frozenset({"mean", "average", "fmean"})
"""Functions and methods that divide by how many numbers they are given."""


def scaling_lines(stack: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines after a reading that multiply, divide or average, its function's first.

    ``stack`` begins with the line that reads, followed by those that called its function.
    """
    for line in stack:
        scope = scope_of(line)
        numbers = [] if scope is None else _scaling(scope.functions[-1])
        yield from (replace(line, number=one) for one in numbers if one >= line.number)


def _scaling(function: ast.AST) -> list[int]:
    """The first lines of the statements of a function that scale numbers, in their order."""
    lines = set()
    for node in ast.walk(function):
        match node:
            case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
                is_scaling = isinstance(operator, SCALING)
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                is_scaling = name in AVERAGING
            case _:
                is_scaling = False
        if is_scaling:
            lines.add(node.lineno)  # type: ignore[attr-defined]
    return sorted(lines)
