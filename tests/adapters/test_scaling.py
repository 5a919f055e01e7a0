"""No adapter scales what it observed: a wrong factor can only come from the framework.

`scaling.toml` accounts for every product and quotient in the adapters' code. `native` is left out:
its module also contains the framework, so its products and quotients are the observed reduction.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import adapters
from tests.tables import table

ACCOUNTED = table("adapters/scaling.toml")

SCALING = (ast.Mult, ast.Div, ast.FloorDiv, ast.MatMult, ast.Pow)

SCALING_FUNCTIONS = {"div", "divide", "mul", "multiply", "prod", "mean", "average", "true_divide"}


def scalings(code: str) -> Iterator[tuple[str, str]]:
    """Yields each multiplication or division with the name of the function that contains it."""

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope = (*scope, node.name)
        if _scales(node):
            yield ".".join(scope), ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    yield from visit(ast.parse(code), ())


def _scales(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, SCALING)
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.rstrip("_") in SCALING_FUNCTIONS


def found() -> dict[str, set[str]]:
    """All multiplications and divisions in the adapters, by module and function."""
    root = Path(adapters.__file__).parent
    by_function = defaultdict(set)
    for path in root.rglob("*.py"):
        module = path.relative_to(root).with_suffix("").parts
        for function, expression in scalings(path.read_text(encoding="utf-8")):
            by_function[".".join((*module, function))].add(expression)
    return {name: all_ for name, all_ in by_function.items() if not name.startswith("native")}


def test_every_product_and_quotient_is_accounted_for() -> None:
    elsewhere = {name for names in ACCOUNTED["elsewhere"].values() for name in names}
    assert set(found()) == {*ACCOUNTED["by_the_advantages"], *elsewhere}


def test_losses_and_gradients_are_scaled_by_advantages_alone() -> None:
    everything = found()

    for function, expression in ACCOUNTED["by_the_advantages"].items():
        assert everything[function] == {expression}


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
