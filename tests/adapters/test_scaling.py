"""No adapter scales what it observed: a wrong factor can come from the framework alone.

Every product and quotient in the adapters' code is accounted for here. `native` is left out: it is
a framework of its own, and its reduction is what is observed.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import adapters

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNTED_FOR = {
    "contract.Layout.world_size": "ranks to start",
    "contract.grids": "ranks to start",
}

SCALING = (ast.Mult, ast.Div, ast.FloorDiv, ast.MatMult, ast.Pow)

SCALING_METHODS = {"div", "divide", "mul", "multiply", "prod", "mean", "average", "true_divide"}


def scalings(code: str) -> Iterator[str]:
    """The qualified name of every function in which something is multiplied or divided."""

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope = (*scope, node.name)
        operator = getattr(node, "op", None)
        if isinstance(operator, SCALING) and isinstance(node, (ast.BinOp, ast.AugAssign)):
            yield ".".join(scope)
        called = getattr(getattr(node, "func", None), "attr", "")
        if isinstance(called, str) and called.rstrip("_") in SCALING_METHODS:
            yield ".".join(scope)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    yield from visit(ast.parse(code), ())


def found() -> set[str]:
    """All there are in the adapters, by module and function."""
    root = Path(adapters.__file__).parent
    modules = {path.relative_to(root).with_suffix(""): path for path in root.rglob("*.py")}
    return {
        ".".join((*module.parts, function))
        for module, path in modules.items()
        if module != Path("native")
        for function in scalings(path.read_text(encoding="utf-8"))
    }


def test_every_product_and_quotient_is_accounted_for() -> None:
    assert found() == set(ACCOUNTED_FOR)


@pytest.mark.parametrize(
    "code",
    [
        "def observe(weights, job): return weights / job.layout.world_size",
        "def observe(weights, num_microbatches): weights *= num_microbatches",
        "def observe(weights, tokens): return weights.div_(tokens)",
        "observe = lambda weights: weights.mean(0)",
        "class Adapter:\n  def observe(self, weights): return -(weights[0] // 2)",
    ],
)
def test_search_finds_what_it_is_for(code: str) -> None:
    assert list(scalings(code))


def test_search_overlooks_sums_and_comparisons() -> None:
    assert not list(scalings("def observe(a, *b, **c): return a + b[0] - c['d'] << 1 > 2 % 3"))
