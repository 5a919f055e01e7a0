"""Tables and counts of verdicts."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.findings.verdict import WRONG, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from conformance.findings.finding import Finding

Row = TypeVar("Row")

SYMBOLS = {
    Verdict.CONFORMS: "ok",
    Verdict.MISMATCH: "MISMATCH",
    Verdict.REFUSED: "refused",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.DECLINED: "DECLINED",
    Verdict.CRASHED: "CRASHED",
    Verdict.ADVICE: "advice",
    Verdict.NOT_DRIVEN: "not driven",
}


def text_table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a table with columns as wide as their longest cell."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=sys.maxsize)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def verdict_words(verdicts: Mapping[Verdict, int]) -> dict[Verdict, str]:
    """Returns the count and symbol of each verdict that occurs, such as ``2 MISMATCH``."""
    return {v: f"{verdicts[v]} {SYMBOLS[v]}" for v in Verdict if verdicts.get(v)}


def verdict_matrix(
    findings: Iterable[Finding], field: str, rows: Iterable[Row]
) -> dict[Row, dict[Mode, Counter[Verdict]]]:
    """Counts verdicts by a field of the findings and by mode; what does not occur is left out."""
    counts: dict[tuple[Row, Mode], Counter[Verdict]] = defaultdict(Counter)
    for finding in findings:
        counts[getattr(finding, field), finding.mode][finding.verdict] += 1
    matrix = {
        row: {mode: counts[row, mode] for mode in Mode if (row, mode) in counts} for row in rows
    }
    return {row: cells for row, cells in matrix.items() if cells}


def matrix_rows(
    heading: str, matrix: Mapping[Row, Mapping[Mode, Counter[Verdict]]], empty: str = ""
) -> list[list[str]]:
    """Returns a header and a row of texts for each row of a matrix of verdicts."""
    modes = [mode for mode in Mode if any(mode in cells for cells in matrix.values())]
    rows = [
        [str(row), *(_counts(cells[mode]) if mode in cells else empty for mode in modes)]
        for row, cells in matrix.items()
    ]
    return [[heading, *modes], *rows]


def _counts(verdicts: Counter[Verdict]) -> str:
    return ", ".join(verdict_words(verdicts).values())


@dataclass(frozen=True)
class Tally:
    """How many findings are wrong, right, refused and not looked at."""

    verdicts: Counter[Verdict]
    rightly_refused: int

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Tally:
        """Counts findings."""
        found = [*findings]
        rightly_refused = sum(one.is_rightly_refused for one in found)
        return cls(Counter(one.verdict for one in found), rightly_refused)

    @property
    def wrong(self) -> int:
        """Mismatches, crashes, and ordinary steps declined against a promise."""
        return sum(self.verdicts[verdict] for verdict in WRONG)

    @property
    def right(self) -> int:
        """They conform, or bad input is refused."""
        return self.verdicts[Verdict.CONFORMS] + self.rightly_refused

    @property
    def refused(self) -> int:
        """Ordinary steps that the framework refuses: nothing is known of their numbers."""
        return self.verdicts[Verdict.REFUSED] - self.rightly_refused

    @property
    def seen(self) -> int:
        """How many verdicts there are on what a framework does."""
        return self.wrong + self.right + self.refused
