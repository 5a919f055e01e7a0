"""Shows how the factors of a chain were computed, in rows for a reader."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from conformance.tracing.counts import How, Unfolding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Line
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.counts import Count

LARGEST_DENOMINATOR = 100_000

LARGEST_NUMERATOR = 1000
"""A number is shown as a fraction if its denominator is at most `LARGEST_DENOMINATOR`, and its
numerator or denominator at most this number."""

DEEPEST = 6
"""The depth to which a divisor is unfolded by default."""


class Row(NamedTuple):
    """A count below a factor, ``depth`` levels down, such as ``24 = 8 + 16``."""

    depth: int
    words: str
    line: Line | None


def unfolded(chain: Chain, factor: Factor, *, whole: bool = False) -> Iterator[Row]:
    """Yield the counts that a factor was made of, each count before its parts."""
    for count in counts(chain, factor):
        yield from _branch(chain, count, 1, None, whole)


def _branch(
    chain: Chain, count: Count, depth: int, above: Count | None, whole: bool
) -> Iterator[Row]:
    """Yield the rows of a count and its parts; a part that only copies the count has no row."""
    line = _line(chain, count)
    hands_on = above is not None and above.value == count.value
    hands_on &= count.how is How.SAME or (above is not None and line == _line(chain, above))
    if whole or not hands_on:
        yield Row(depth, _composed(count), line)
    is_counted = count.how is not How.UNKNOWN and depth < DEEPEST
    if whole or is_counted:
        for part in count.parts:
            if whole or part.node is not None:
                yield from _branch(chain, part, depth + (whole or not hands_on), count, whole)


def _composed(count: Count) -> str:
    """A count with its parts, such as ``24 = 16 + 8`` or ``1, clamped from 0``."""
    parts = [number(part.value) for part in count.parts]
    if count.how is How.CLAMP and parts != [number(count.value)]:
        return f"{number(count.value)}, clamped from {parts[0]}"
    if len(parts) < 2 or count.how not in (How.SUM, How.PRODUCT):
        return number(count.value)
    signs = (" - ", " + ") if count.how is How.SUM else (" / ", " · ")
    rest = (
        signs[share > 0] + part for part, share in zip(parts[1:], count.shares[1:], strict=True)
    )
    return f"{number(count.value)} = {parts[0]}{''.join(rest)}"


def _line(chain: Chain, count: Count) -> Line | None:
    return None if count.node is None else chain.graph.operation(count.node).line


def counts(chain: Chain, factor: Factor) -> list[Count]:
    """The counts in a factor's operands that equal the factor or its reciprocal."""
    unfolding = Unfolding(chain.graph)
    values = (factor.value, 1 / factor.value)
    found = [
        next(filter(None, (unfolding.of_value(one, value) for value in values)), None)
        for one in chain.operands(factor)
    ]
    return [one for one in found if one is not None]


def number(value: float) -> str:
    """A number for a reader: as a fraction if it is a ratio of small integers."""
    if not math.isfinite(value):
        return str(value)
    fraction = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    is_small = min(abs(fraction.numerator), fraction.denominator) <= LARGEST_NUMERATOR
    if value and is_small and abs(float(fraction) / value - 1) < 1e-6:
        return str(fraction)
    return f"{value:.6g}"
