"""Why a line is suspected, and how much each reason says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from conformance.findings.trace import Line


class Why(IntEnum):
    """How much a reason to suspect a line says, the least first."""

    DIVISOR = -2  # nothing else is suspected, and this divides by no count of the step
    UNDIVIDED = -1  # nothing else is suspected, and losses are added up but not divided
    CONSEQUENCE = 0  # a count is made of one that is suspected
    PARTNERED = 1  # a factor is what the weight is off by, and another takes it back
    IDLE_TENSOR = 2  # a tensor is 1 where a factor is missing
    CALLER = 3  # who called what counts
    CHOSEN = 4  # the line that chose the tensor or group that is counted
    AVERAGED = 5  # a reduction averages, and nothing takes that back
    COUNTED = 6  # a count had to be another
    COUNTED_BY_PYTHON = 7  # the same, where a function of Python counts
    RETURNED = 8  # a line of plain Python had the count before any tensor
    MASK = 9  # what only adds up entries was given others than those to count
    IDLE = 10  # a number is 1 where a factor is missing
    WITHOUT_PARTNER = 11
    INVERSE = 12  # a factor multiplies where it had to divide
    ONE = 13  # a 1 had to be a number of ranks or micro-batches
    KNOWING = 14  # the same as `IDLE`, where the function has a variable with the missing factor
    SIZE = 15  # a number of ranks or micro-batches had to be another
    MEAN = 16  # a mean of entries that are not those of the unit
    PART = 17  # the count of a part of the step stands for the whole
    GROUP = 18  # a reduction goes over another number of ranks
    WRITTEN = 19  # a count is multiplied or divided by a 1 that is written out
    ASSIGNED = 20  # where a wrong number got its name
    UNUSED = 21  # the right count is made, and not used
    CHANGED = 22  # a count is not what it is made of
    UNMASKED = 23  # losses are added up with those that no mask has made 0


@dataclass(frozen=True)
class Suspect:
    """A line to look at, and why."""

    line: Line
    why: str


class Ranked(NamedTuple):
    """A suspect with what ranks it: of one reason the deepest, or nearest, comes first."""

    why: Why
    depth: int
    suspect: Suspect
