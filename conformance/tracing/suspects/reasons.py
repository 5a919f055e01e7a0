"""Why a line is suspected, and how much each reason says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.findings.trace import Line


LATER = 1000
"""More than there are factors in a chain: what ranks before all that is later or deeper."""

MOST = 3
"""How many suspects are named."""


class Why(IntEnum):
    """How much a reason to suspect a line says, the least first."""

    LOSS = -10  # nothing else is suspected, and this computes the loss of the token
    DIVISOR = -9  # nothing else is suspected, and this divides by no count of the step
    RATIO = -8  # nothing else is suspected, and a loss is multiplied by another ratio
    OF_PART = -7  # nothing else is suspected, and this counts a part of the step
    RATIO_ALONE = -6  # nothing else is suspected, and another ratio is all that is wrong
    LOGGED = -5  # nothing else is suspected, and this makes a log of a loss that is right
    JOINED = -4  # the same, where losses are added up or averaged
    UNDIVIDED = -3  # nothing else is suspected, and losses are added up but not divided
    PARTLY = -2  # the same, and plain Python made a divisor that lacks one of its counts
    UNREAD = -1  # the same, where a function drops something, or a term joins others
    CONSEQUENCE = 0  # a count is made of one that is suspected
    PARTNERED = 1  # a factor is what the weight is off by, and another takes it back
    IDLE_TENSOR = 2  # a tensor is 1 where a factor is missing
    CALLER = 3  # who called what counts
    CHOSEN = 4  # the line that chose the tensor or group that is counted
    MASK = 5  # the entries of a tensor are counted, and these had to be others
    AVERAGED = 6  # a reduction averages, and nothing takes that back
    COUNTED = 7  # a count had to be another
    COUNTED_BY_PYTHON = 8  # the same, where a function of Python counts
    RETURNED = 9  # a line of plain Python had the count before any tensor
    HANDED = 10  # a function that only adds up entries was given others than those to count
    IDLE = 11  # a number is 1 where a factor is missing
    WITHOUT_PARTNER = 12
    INVERSE = 13  # a factor multiplies where it had to divide
    ONE = 14  # a 1 had to be a number of ranks or micro-batches
    KNOWING = 15  # the same as `IDLE`, where the function has a variable with the missing factor
    SIZE = 16  # a number of ranks or micro-batches had to be another
    SURPLUS = 17  # a factor is there more often than what takes it back
    MEAN = 18  # a mean of entries that are not those of the unit
    PART = 19  # the count of a part of the step stands for the whole
    ORIGIN = 20  # plain Python had the very number first that had to be another
    GROUP = 21  # a reduction goes over another number of ranks
    WRITTEN = 22  # a count is multiplied or divided by a 1 that is written out
    ASSIGNED = 23  # where a wrong number got its name
    UNUSED = 24  # the right count is made, and not used
    CALLED = 25  # another call of the same function has the right count
    CHANGED = 26  # a count is not what it is made of
    UNMASKED = 27  # losses are added up with those that no mask has made 0
    MASKING = 28  # a token weighs nothing, and a value or a 0 is chosen
    BOUNDING = 29  # the same, where the value has bounds
    CHOOSING = 30  # the same, where one of several values of the token is chosen


@dataclass(frozen=True)
class Suspect:
    """A line to look at, and why.

    ``instead`` says what it computes with and what that had to be, if runs have proven it.
    """

    line: Line
    why: str
    instead: str = ""


def of_lines(found: Iterable[Suspect]) -> list[Suspect]:
    """At most three suspects: the first of each line."""
    by_line: dict[tuple[str, int], Suspect] = {}
    for one in found:
        by_line.setdefault((one.line.file, one.line.number), one)
    return [*by_line.values()][:MOST]


class Ranked(NamedTuple):
    """A suspect with what ranks it: of one reason the deepest, or nearest, comes first."""

    why: Why
    depth: int
    suspect: Suspect
