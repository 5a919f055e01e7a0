"""The operations of one rank in a job whose painted token alone has an advantage.

A rank sends this to the controlling process, which joins the operations of all ranks. Everything is
a number or a name: no line of a framework's source is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer, SerializationInfo, ValidationInfo

GIVEN = "given"
"""The name of a tensor that no recorded operation made, such as one made of a numpy array."""

LIFTED = "aten.lift_fresh.default"
"""The operation by which torch makes a tensor of numbers of Python, or of a numpy array."""

OUTSIDE = "outside"
"""The name of a change that no operation of torch made."""

MULTIPLYING = (
    *("aten.mul", "aten.div", "aten._foreach_mul", "aten._foreach_div"),
    *("jax.mul", "jax.div"),
)
"""The beginnings of the names of operations that multiply or divide."""

READ = "aten._local_scalar_dense.default"
"""The operation that makes a Python number of a tensor."""

BUILT = "python.stack"
"""The operation by which Python makes a tensor of a list of others."""

LISTED = "tolist"
"""The operation that makes a list of Python numbers or a numpy array of a tensor."""


def _elsewhere(file: str, info: SerializationInfo | ValidationInfo) -> str:
    """The name of a file elsewhere, if that is known."""
    return info.context.get(file, file) if info.context else file


File = Annotated[str, AfterValidator(_elsewhere), PlainSerializer(_elsewhere)]
"""The path of a file on this machine, which documents that are read on others have otherwise."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a framework, or of the engine that it trains on, in a file of this machine.

    ``columns`` are those of what it was evaluating, from the first to behind the last, in bytes.
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
    """The entries of a tensor: their largest size and their sum, and all of them if it is small.

    ``is_measured`` tells numbers and truths from integers, which may be indices.
    """

    size: int
    values: tuple[float, ...]
    largest: float
    total: float
    nonzero: int
    is_measured: bool


NOTHING = Contents(0, (), 0.0, 0.0, 0, is_measured=False)

SMALL = 64
"""Entries of the largest tensor whose entries are kept: it may be a count, or made of some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation of torch or JAX, with the contents of the tensor that it made or changed.

    ``stack`` are the lines of the framework that asked for it, the innermost first; in a backward
    pass those of the forward operation that it differentiates. ``inputs`` are the places of its
    operands in `RankTrace.operations`, and ``numbers`` its operands that are Python numbers. Of one
    that multiplies or makes a tensor of numbers, ``variables`` are the numbers that the innermost
    function has, by their names.
    ``requires_grad`` tells whether one of its operands has a gradient.
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
        """Whether it made its tensor of what no operation of torch made."""
        return self.name in (GIVEN, LIFTED)

    @property
    def line(self) -> Line | None:
        """The innermost line of the framework."""
        return self.stack[0] if self.stack else None


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The operations of one rank in their order.

    ``roots`` are the places of the tensors that backward passes began with, and ``gradients`` those
    of the tensors that adapters read the probe's gradient from. ``cuts`` has the lines that took
    the part of a tensor that was read, by the place of the operation that read it. ``kinds`` are
    those of the values that functions have in variables, by their files and names.
    """

    operations: tuple[Operation, ...] = ()
    cuts: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    gradients: tuple[int, ...] = ()
    kinds: Annotated[dict[tuple[str, str], dict[str, str]], Field(exclude=True)] = field(
        default_factory=dict
    )

    @cached_property
    def collectives(self) -> dict[Collective, tuple[int, ...]]:
        """The places of each collective's results on this rank."""
        found: dict[Collective, tuple[int, ...]] = {}
        for place, operation in enumerate(self.operations):
            if operation.collective is not None:
                found[operation.collective] = (*found.get(operation.collective, ()), place)
        return found
