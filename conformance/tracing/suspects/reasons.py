"""A line to look at, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.findings.trace import Line


MOST = 3
"""The most suspects that are named."""


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


def extent(findings: int) -> str:
    """The findings with which a line is proven, in words."""
    return f"{findings} of its findings conform" if findings > 1 else "its only finding conforms"
