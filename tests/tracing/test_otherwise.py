"""Operations that are run as others."""

from __future__ import annotations

import pytest
import torch

from adapters.contract.job import Operand, Replacement
from conformance.ranks.recording.otherwise import Otherwise, others, partly_detached

ONE = torch.tensor([[1.0, -2.0], [3.0, 5.0]])
OTHER = torch.tensor([[2.0, 2.0], [4.0, 4.0]])

MASK = torch.tensor([[True, False], [False, False]])


def run(
    operation: str, instead: str, text: str, one: torch.Tensor = ONE, line: int = 1
) -> torch.Tensor:
    """The result of an expression in which an operation of a line is run as another."""
    code = compile(f"result = {text}", "a_file.py", "exec")
    at = Replacement(
        file="a_file.py",
        line=line,
        columns=None,
        operation=operation,
        operand=Operand.RESULT,
        instead=instead,
    )
    held: dict[str, torch.Tensor] = {"one": one + 0, "other": OTHER, "mask": MASK}
    with Otherwise(at, lambda module: module.startswith(("torch", "conformance"))):
        exec(code, {"torch": torch, "__name__": "a_framework"}, held)
    return held["result"]


@pytest.mark.parametrize(
    ("operation", "instead", "text", "expected"),
    [
        (
            "aten.minimum.default",
            "with max instead of min",
            "torch.min(one, other)",
            [[2, 2], [4, 5]],
        ),
        (
            "aten.maximum.default",
            "with min instead of max",
            "one.maximum(other)",
            [[1, -2], [3, 4]],
        ),
        ("aten.amax.default", "with amin instead of amax", "one.amax(-1)", [-2, 3]),
        ("aten.rsub.Scalar", "with the operands of sub swapped", "1 - one", [[0, -3], [2, 4]]),
        ("aten.sub.Tensor", "with add instead of sub", "one - other", [[3, 0], [7, 9]]),
        (
            "aten.div.Tensor",
            "with the operands of div swapped",
            "other / one",
            [[0.5, -1], [0.75, 1.25]],
        ),
        ("aten.mul.Tensor", "without mul", "2 * one", [[1, -2], [3, 5]]),
        ("aten.mul.Tensor", "without mul", "one[0] * other", [[2, 2], [4, 4]]),
        ("aten.neg.default", "without neg", "-one", [[1, -2], [3, 5]]),
        ("aten.bitwise_not.default", "without bitwise_not", "~mask", [[1, 0], [0, 0]]),
        ("aten.clamp.default", "without a lower bound", "one.clamp(-1, 2)", [[1, -2], [2, 2]]),
        ("aten.clamp.default", "without an upper bound", "one.clamp(-1, 2)", [[1, -1], [3, 5]]),
        (
            "aten.clamp.default",
            "without an upper bound",
            "torch.clamp(one, max=2)",
            [[1, -2], [3, 5]],
        ),
        ("aten.gt.Scalar", "with ge instead of gt", "one > 1", [[1, 0], [1, 1]]),
        ("aten.gt.Scalar", "with le instead of gt", "one > 1", [[1, 1], [0, 0]]),
        (
            "aten.where.self",
            "with its two branches swapped",
            "torch.where(mask, one, other)",
            [[2, -2], [3, 5]],
        ),
        ("aten.round.default", "without round", "(one / 2).round()", [[0.5, -1], [1.5, 2.5]]),
        ("aten.sum.dim_IntList", "with sum over the other dimension", "one.sum(-1)", [4, 3]),
        ("aten.sum.dim_IntList", "with sum over the other dimension", "one.sum(dim=0)", [-1, 8]),
        ("aten.var.correction", "with another correction of var", "one[1].var()", 1),
        ("aten.var.correction", "with another correction of var", "one[1].var(unbiased=False)", 2),
        ("aten.mul_.Tensor", "with div instead of mul", "one.mul_(2)", [[0.5, -1], [1.5, 2.5]]),
        (
            "aten._to_copy.default",
            "without to_copy",
            "(one / 3).bfloat16().float() * 3",
            [[1, -2], [3, 5]],
        ),
    ],
)
def test_a_line_computes_with_what_may_have_been_meant(
    operation: str, instead: str, text: str, expected: object
) -> None:
    result = run(operation, instead, text)

    assert instead in others(operation)
    torch.testing.assert_close(result.double(), torch.tensor(expected, dtype=torch.float64))


def test_the_derivative_is_that_of_what_was_run() -> None:
    leaf = torch.tensor([[1.0, 3.0]], requires_grad=True)

    larger = run("aten.minimum.default", "with max instead of min", "torch.min(one, 2 * one)", leaf)
    larger.sum().backward()

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(("which", "expected"), [("first", [2.0, 18.0]), ("second", [1.0, 9.0])])
def test_one_operand_may_be_without_a_derivative(which: str, expected: list[float]) -> None:
    leaf = torch.tensor([1.0, 3.0], requires_grad=True)
    instead = f"with the {which} operand of mul detached"

    run("aten.mul.Tensor", instead, "one * one**2", leaf).sum().backward()

    assert instead in partly_detached("aten.mul.Tensor")
    assert leaf.grad is not None
    assert leaf.grad.tolist() == expected


def test_an_operand_without_a_derivative_does_not_replace_a_result_that_has_one() -> None:
    leaf = torch.tensor([1.0, 3.0], requires_grad=True)

    run("aten.mul.Tensor", "without mul", "one.detach() * one", leaf).sum().backward()

    assert leaf.grad is not None


def test_other_lines_are_left_alone() -> None:
    result = run("aten.neg.default", "without neg", "(-one\n)", ONE, line=2)

    assert torch.equal(result, -ONE)


@pytest.mark.parametrize(
    ("operation", "instead", "text"),
    [
        ("aten.bitwise_and.Tensor", "with bitwise_or instead of bitwise_and", "(one > 0) & mask"),
        ("aten.sum.dim_IntList", "with sum over the other dimension", "one[:, :1].sum(-1)"),
        ("aten._to_copy.default", "without to_copy", "(one > 0).float()"),
    ],
)
def test_a_step_goes_on_where_the_other_operation_cannot_take_the_place(
    operation: str, instead: str, text: str
) -> None:
    """Shapes and kinds of numbers stay what they are."""
    plain = eval(text, {"one": ONE, "mask": MASK})

    result = run(operation, instead, text)

    assert result.shape == plain.shape
    assert result.dtype == plain.dtype
