"""Moves the entries that an operation takes, forward and backward, to undo a shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from conformance.findings.trace import ROLL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def taking(name: str, args: Sequence[Any], by: int, *, is_derivative: bool) -> list[Any]:
    """The operands with which an operation, or its derivative, takes entries ``by`` places later.

    Those that would be taken from beyond the tensor are taken as before.
    """
    given = [*args]
    if name == ROLL:
        given[1] = [given[1][0] + (by if is_derivative else -by), *given[1][1:]]
    elif (where := SLICES.get(name)) is not None:
        given += [None] * (where + 2 - len(given))
        size = _size(given, is_derivative)
        start, end = (
            _within(one, size, of) for one, of in zip(given[where:], (0, size), strict=False)
        )
        if 0 <= start + by <= end + by <= size:
            given[where : where + 2] = [start + by, end + by]
    elif (where := SELECTED.get(name)) is not None:
        size = _size(given, is_derivative)
        index = _within(given[where], size, 0) + by
        given[where] = index if 0 <= index < size else given[where]
    elif (at := INDEXED.get(name)) is not None:
        given[1 if name in LISTS else 2] = at(given, by)
    return given


SLICES = {"aten.slice.Tensor": 2, "aten.slice_backward.default": 3}
"""Operations that take a range, with the place of its start among their operands."""

SELECTED = {"aten.select.int": 2, "aten.select_backward.default": 3}
"""Operations that take one entry, with the place of its index among their operands."""

LISTS = (
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten.index_put_.default",
    "aten._index_put_impl_.default",
)
"""Operations with a list of indices of each dimension, their second operand."""


def _size(given: Sequence[Any], is_derivative: bool) -> int:
    """The size of the dimension that an operation takes entries of."""
    shape = given[1] if is_derivative else given[0].shape
    dimension = given[2] if is_derivative else given[1]
    return int(shape[dimension])


def _within(index: int | None, size: int, otherwise: int) -> int:
    index = otherwise if index is None else int(index)
    return min(max(index + size if index < 0 else index, 0), size)


def _indices(given: Sequence[Any], by: int) -> list[Any]:
    """The indices of dimensions, those of the last one moved unless they are truths.

    Those before them are of rows.
    """
    *rows, last = given[1]
    if last is None or last.dtype is torch.bool:
        return [*given[1]]
    return [*rows, (last + by).clamp(0, given[0].shape[len(rows)] - 1)]


def _index(given: Sequence[Any], by: int) -> Any:
    return (given[2] + by).clamp(0, given[0].shape[given[1]] - 1)


INDEXED: dict[str, Callable[[Sequence[Any], int], Any]] = {
    **dict.fromkeys(LISTS, _indices),
    "aten.index_select.default": _index,
    "aten.index_add.default": _index,
    "aten.index_add_.default": _index,
}
"""Operations that take entries by tensors of indices, with what moves these."""
