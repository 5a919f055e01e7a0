"""The lines to blame for a wrong weight: lines that compute a wrong number from right ones.

A count is suspected if another value of it would make the weight right. So are the counts that it
was made of, the innermost first. A suspected line is not proven to be wrong: only a run with
another value can show that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.job import Operand
from conformance.findings import cause
from conformance.tracing.chain import SUMMING
from conformance.tracing.counts import How, Unfolding
from conformance.tracing.graph import is_close, is_of_count
from conformance.tracing.needed import all_needed, made_of
from conformance.tracing.right_counts import NO_FACTOR, counts_of_token, is_product
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.findings.trace import Line
    from conformance.tracing.graph import Node
    from conformance.tracing.needed import Needed
    from conformance.tracing.wrong_weight import WrongWeight

OF_LOG = "makes a log of a loss whose gradient is right"


class Says(IntEnum):
    """The strength of a reason to suspect a line, the weakest first."""

    ON_THE_WAY = 0  # the line handles the token's value
    CALLS = 1  # the line called the function of a suspected line
    MAY_BE = 2  # the line uses a count of the reference, or a 1, and may need another count
    WRONG = 3  # the line's count should have been another count of the reference
    OFF = 4  # the line's factor equals the factor by which the weight is off
    CHANGED = 5  # the line makes a wrong count from right parts


class _Blamed(NamedTuple):
    """A suspected line with its sort key; lines with the same reason are sorted by depth."""

    is_own: bool
    says: Says
    depth: float
    suspect: Suspect


@dataclass(frozen=True, eq=False)
class Blame:
    """Finds the lines to blame for one wrong weight."""

    weight: WrongWeight

    def suspects(self) -> list[Suspect]:
        """At most three lines, those of the framework before those of its engine."""
        found = [*self._of_counts(all_needed(self.weight)), *self._of_factors()]
        if not any(one.is_own for one in found):
            found += [*self._of_way()]
        return _first(found)

    def of_divisor(self, divisor: float) -> list[Suspect]:
        """The lines of a divisor that Python read from the same tensor as the number to divide."""
        end = self.weight.chain.way[-1]
        count = Unfolding(self.weight.chain.graph).of_value(end, divisor)
        if count is None or self.weight.right.ingredient(divisor) is not None:
            return []
        return _first(self._of_counts(made_of(count, divisor * self.weight.off, end, 0)))

    @cached_property
    def _named(self) -> dict[str, float]:
        return counts_of_token(self.weight.traced.context, self.weight.traced.place)

    def _name(self, number: float) -> str | None:
        """The name of the reference's count that a number equals; None if it equals none."""
        return next((name for name, one in self._named.items() if is_close(one, number)), None)

    def _of_counts(self, several: Iterable[Needed]) -> Iterator[_Blamed]:
        """Yield the lines of wrong counts."""
        whole = ""
        for one in several if self.weight.off and math.isfinite(self.weight.off) else ():
            name = None if one.needed is None else self._name(one.needed)
            if name is not None:
                whole = f": {self._told(one, name)}"
            if one.operand is Operand.TENSOR:
                continue  # the operation that made the tensor is a count of its own
            count = one.made
            if one.is_changed:
                words = f"makes {count.value:.6g} of {count.recounted:.6g}{whole}"
                yield from self._at(one.node, Says.CHANGED, one.depth, words)
            elif name is not None and one.needed is not None and self._is_wrong(one):
                yield from self._of_wrong(one, self._told(one, name))

    def _told(self, one: Needed, name: str) -> str:
        if name == NO_FACTOR:
            return f"{one.made.value:.6g} where 1 is right"
        if is_product(name):
            return f"{one.made.value:.6g} where {one.needed:.6g} is right ({name})"
        return f"{one.made.value:.6g} where there are {one.needed:.6g} {name}"

    def _is_wrong(self, one: Needed) -> bool:
        """Whether a count differs from its needed value; a 1 is often not a count at all."""
        assert one.needed is not None
        is_one = one.made.value == 1 and one.made.node is not None
        is_of_units = self.weight.right.ingredient(one.needed) is not None
        return not is_close(one.made.value, one.needed) and (is_of_units or not is_one)

    def _of_wrong(self, one: Needed, words: str) -> Iterator[_Blamed]:
        """Yield the lines that made a wrong count.

        The reason is weak in two cases: the value is a right count, which may be meant for another
        divisor, or the needed value is not a count of the right divisor.
        """
        right = self.weight.right
        assert one.needed is not None
        is_meant = right.ingredient(one.made.value) is not None
        are_sizes = right.is_size(one.made.value) and right.is_size(one.needed)
        is_told = are_sizes or right.ingredient(one.needed) is not None
        says = Says.WRONG if is_told and not is_meant else Says.MAY_BE
        yield from self._at(one.node, says, one.depth, words)
        tensors = [part.node for part in one.made.parts if part.node is not None]
        if one.made.how is How.SUM and len(tensors) > 1:
            made = {self.weight.operation(node).line for node in tensors}
            if len(made) == 1:  # the parts cannot be distinguished
                yield from self._at(tensors[0], says, one.depth + 1, words)

    def _of_factors(self) -> Iterator[_Blamed]:
        """Yield the lines that multiply by the weight's error, or by 1 if a factor is missing."""
        off, right = self.weight.off, self.weight.right
        for depth, factor in enumerate(self.weight.factors if off else ()):
            operation = self.weight.operation(factor.node)
            needed = self._name(off / factor.value) if ".mean" in operation.name else None
            if not factor.is_idle and is_close(factor.value, off):
                words = f"multiplies by {off:.6g}, which is what the weight is off by"
                yield from self._at(factor.node, Says.OFF, depth, words)
            elif not factor.is_idle and needed is not None:
                words = f"a mean of {1 / factor.value:.6g} where there are"
                words = f"{words} {off / factor.value:.6g} {needed}"
                yield from self._at(factor.node, Says.OFF, depth, words)
            elif factor.is_idle and 1.0 in operation.numbers and right.is_size(off):
                words = f"multiplies by 1 where the weight lacks a factor of {1 / off:.6g}"
                yield from self._at(factor.node, Says.WRONG, depth, words)

    def _of_way(self) -> Iterator[_Blamed]:
        """Yield the lines that handle the token's value, for weights without a wrong count.

        Factors that are not counts, such as a ratio or a mask, come first, then other factors, then
        operations that sum values.
        """
        traced, chain = self.weight.traced, self.weight.chain
        for depth, factor in enumerate(self.weight.factors if traced.observed else ()):
            if not factor.is_idle:
                words = f"multiplies by {factor.value:.6g}"
                at = 0 if is_of_count(factor.value) else len(chain.way)
                yield from self._at(factor.node, Says.MAY_BE, at - depth, words)
        trained = chain.graph.trained if traced.is_trained_right else frozenset()
        adding = OF_LOG if traced.is_trained_right else cause.NO_FACTOR
        for depth, node in enumerate(one for one in chain.way if one not in trained):
            operation = self.weight.operation(node)
            if operation.name.startswith(SUMMING) or "reduce" in operation.name:
                yield from self._at(node, Says.ON_THE_WAY, -depth, adding)

    def _at(self, node: Node, says: Says, depth: float, words: str) -> Iterator[_Blamed]:
        """Yield the line that called an operation, and the callers of the line's function."""
        first, callers = self.weight.operation(node).stack[:1], self.weight.operation(node).stack
        yield from self._lines(first, says, depth, words)
        yield from self._lines(callers[1:MOST], min(says, Says.CALLS), depth, words)

    def _lines(
        self, lines: Iterable[Line], says: Says, depth: float, words: str
    ) -> Iterator[_Blamed]:
        """Yield suspects for lines in the given order, before any suspect of smaller depth."""
        for place, line in enumerate(lines):
            at = depth - place / 100
            yield _Blamed(self.weight.is_own(line), says, at, Suspect(line, words))


def _first(found: Iterable[_Blamed]) -> list[Suspect]:
    ordered = sorted(found, key=lambda one: one[:3], reverse=True)
    return of_lines(one.suspect for one in ordered)
