"""The operations of one rank in a job in which only one token has an advantage.

A rank sends this record to the controlling process, which joins the operations of all ranks. It
contains only numbers and names, and no source code of a framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer, SerializationInfo, ValidationInfo

GIVEN = "given"
"""The name of a tensor that no recorded operation made, such as one from a numpy array."""

LIFTED = "aten.lift_fresh.default"
"""The operation by which torch makes a tensor from Python numbers, or from a numpy array."""

OUTSIDE = "outside"
"""The name of a change to a tensor that no operation of torch made."""

MULTIPLYING = (
    *("aten.mul", "aten.div", "aten._foreach_mul", "aten._foreach_div"),
    *("jax.mul", "jax.div"),
)
"""The beginnings of the names of operations that multiply or divide."""

READ = "aten._local_scalar_dense.default"
"""The operation that turns a tensor into a Python number."""

BUILT = "python.stack"
"""The operation by which Python makes one tensor from a list of tensors."""

LISTED = "tolist"
"""The operation that turns a tensor into a list of Python numbers or a numpy array."""


def _elsewhere(file: str, info: SerializationInfo | ValidationInfo) -> str:
    """The name that a file has on other machines, if it is known."""
    return info.context.get(file, file) if info.context else file


File = Annotated[str, AfterValidator(_elsewhere), PlainSerializer(_elsewhere)]
"""The path of a file on this machine; documents contain its name on other machines instead."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code of a framework or its engine, in a file on this machine.

    ``columns`` are the start and end, in bytes, of the expression that was being evaluated.
    """

    file: File
    number: int
    function: str
    columns: tuple[int, int] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.number} ({self.function})"


@dataclass(frozen=True, slots=True)
class Collective:
    """The ``sequence``-th collective of a group of ranks, or message from one rank to another."""

    group: tuple[int, ...]
    sequence: int
    is_message: bool = False
    made_by: tuple[Line, ...] = field(default=(), compare=False)
    """The lines that made the group, on the rank that recorded it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The largest absolute value and the sum of a tensor's entries, and all entries if it is small.

    ``is_measured`` is True for floats and booleans, and False for integers, which may be indices.
    """

    size: int
    values: tuple[float, ...]
    largest: float
    total: float
    nonzero: int
    is_measured: bool


NOTHING = Contents(0, (), 0.0, 0.0, 0, is_measured=False)

SMALL = 64
"""The largest number of entries of a tensor that is kept whole, because it may contain counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation of torch or JAX, with the contents of the tensor that it made or changed.

    ``stack`` has the framework's lines that called the operation, the innermost first; in a
    backward pass, the lines of the forward operation that it differentiates. ``inputs`` are the
    indices of its operands in `RankTrace.operations`, and ``numbers`` its operands that are Python
    numbers. For an operation that multiplies or makes a tensor of numbers, ``variables`` are the
    numbers in variables of the innermost function, by name. ``requires_grad`` tells whether one of
    its operands has a gradient.
    """

    name: str
    stack: tuple[Line, ...]
    contents: Contents
    inputs: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    variables: tuple[tuple[str, float], ...] = ()
    backward_pass: int | None = None
    requires_grad: bool = False
    collective: Collective | None = None

    @property
    def is_given(self) -> bool:
        """Whether the operation made its tensor from values that no operation of torch made."""
        return self.name in (GIVEN, LIFTED)

    @property
    def line(self) -> Line | None:
        """The innermost line of the framework."""
        return self.stack[0] if self.stack else None


KindsOfLines = dict[str, dict[int, str | None]]
"""The kinds of a function's values, by variable and by the line at which they were noted."""


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The operations of one rank in the order of their execution.

    ``roots`` are the indices of the tensors that backward passes began with, and ``gradients``
    those of the tensors from which adapters read the probe's gradient. ``cuts`` has the lines that
    cut out each part of a tensor that was read, by the index of the operation that read it.
    ``kinds`` are the kinds of values in the variables of functions, by file and first line, then by
    variable and by the line at which they were noted; None for a value that no other can replace.
    """

    operations: tuple[Operation, ...] = ()
    cuts: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    gradients: tuple[int, ...] = ()
    kinds: Annotated[dict[tuple[str, int], KindsOfLines], Field(exclude=True)] = field(
        default_factory=dict
    )

    @cached_property
    def collectives(self) -> dict[Collective, tuple[int, ...]]:
        """The indices of the operations that hold each collective's results on this rank."""
        found: dict[Collective, tuple[int, ...]] = {}
        for place, operation in enumerate(self.operations):
            if operation.collective is not None:
                found[operation.collective] = (*found.get(operation.collective, ()), place)
        return found
