"""A suspected line, with the reason to suspect it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.findings.trace import Line


MOST = 3
"""The most suspected lines that are named."""


@dataclass(frozen=True)
class Suspect:
    """A suspected line, with the reason to suspect it.

    If runs have proven the line, ``instead`` names its wrong value and the value that is meant.
    """

    line: Line
    why: str
    instead: str = ""


def of_lines(found: Iterable[Suspect]) -> list[Suspect]:
    """The first `MOST` suspects on different lines."""
    by_line: dict[tuple[str, int], Suspect] = {}
    for one in found:
        by_line.setdefault((one.line.file, one.line.number), one)
    return [*by_line.values()][:MOST]


def extent(findings: int) -> str:
    """The number of findings that conform with a line's other value, in words."""
    return f"{findings} of its findings conform" if findings > 1 else "its only finding conforms"
