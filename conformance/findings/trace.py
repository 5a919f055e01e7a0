"""What one rank did to the value of one token on its way to the gradient: factors and their counts.

A rank sends this to the controlling process, which joins the traces of all ranks. Everything is a
number or a name: no line of a framework's source is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Line:
    """A line of a framework, or of the engine that it trains on."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} ({self.function})"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What ranks did together: those of a group, and which of the group's collectives it was."""

    group: tuple[int, ...]
    sequence: int


@dataclass(frozen=True, kw_only=True)
class Count:
    """A small tensor apart from the token's own: a count, or what one is made of.

    ``inputs`` are the places of what it was made of in `RankTrace.counts`.
    """

    values: tuple[float, ...]
    operation: str
    line: Line | None
    inputs: tuple[int, ...] = ()
    collective: Collective | None = None


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One operation that changed the token's value, from ``before`` to ``after``.

    ``counts`` are the places of its other operands in `RankTrace.counts`.
    """

    before: float
    after: float
    operation: str
    line: Line | None
    counts: tuple[int, ...] = ()
    collective: Collective | None = None
    is_backward: bool = False

    def coming_from(self, value: float) -> Factor:
        """The same with another value before it."""
        return replace(self, before=value)

    @property
    def value(self) -> float:
        """What the token's value was multiplied by."""
        return self.after / self.before


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What one rank saw of the painted token, from its loss to the optimizer's gradient."""

    factors: tuple[Factor, ...]
    counts: tuple[Count, ...]
    begins: bool = False
    """Whether the token's loss is on this rank; others may receive its gradient."""
