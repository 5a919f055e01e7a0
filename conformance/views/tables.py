"""Tables and counts of verdicts, as plain text and as GitHub's Markdown; a history is one."""

from __future__ import annotations

import html
import re
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.findings.verdict import Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from conformance.findings.finding import Finding
    from conformance.runs.history import Row as HistoryRow

    Cells = dict[tuple[Check, Mode], str]

Row = TypeVar("Row")

SYMBOLS = {
    Verdict.CONFORMS: "ok",
    Verdict.MISMATCH: "MISMATCH",
    Verdict.REFUSED: "refused",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.DECLINED: "DECLINED",
    Verdict.CRASHED: "CRASHED",
    Verdict.ADVICE: "advice",
}

SPECIAL_CHARACTERS = re.compile(r"[\\`*_{}\[\]#|~$]")
"""Characters to which Markdown, or GitHub's dialect of it, gives a meaning inside of a line."""

MENTION = "@\N{ZERO WIDTH SPACE}"
"""Looks like @ and notifies nobody, unlike an escaped @."""


SUBJECT_WIDTH = 50
"""Characters of a commit's subject that a line shows."""


def text_table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a table with columns as wide as their longest cell."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=sys.maxsize)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def markdown_table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the lines of a table whose cells are Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def escape_markdown(text: str) -> str:
    """Returns one line of Markdown that reads as ``text`` and has no other effect."""
    line = html.escape(" ".join(text.split()), quote=False)
    escaped = SPECIAL_CHARACTERS.sub(lambda character: f"&#{ord(character[0])};", line)
    return escaped.replace("@", MENTION)


def preformatted(lines: Iterable[str]) -> Iterator[str]:
    """Yields Markdown that shows lines as they are, in which only HTML has a meaning."""
    yield "<pre>"
    for line in lines:
        yield html.escape(line, quote=False).replace("@", MENTION)
    yield "</pre>"


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


def history_text(rows: Sequence[HistoryRow]) -> Iterator[str]:
    """Yields a table for each check, with a line for each commit, then the commits' subjects."""
    labels = [f"{row.commit.revision[:10]} {row.commit.ref}" for row in rows]
    cells = [_cells(row) for row in rows]
    for check, modes in _columns(cells).items():
        yield from text_table(
            [
                [check, *modes],
                *(
                    [label, *(cell.get((check, mode), "") for mode in modes)]
                    for label, cell in zip(labels, cells, strict=True)
                ),
            ]
        )
        yield ""
    for row, label in zip(rows, labels, strict=True):
        yield f"{label}: {row.commit.date} {row.commit.subject[:SUBJECT_WIDTH]}".rstrip()
        if row.problem is not None:
            yield f"  {row.problem}"


def history_markdown(rows: Sequence[HistoryRow]) -> Iterator[str]:
    """Yields one table; what could not be run says so in its last column."""
    cells = [_cells(row) for row in rows]
    columns = [(check, mode) for check, modes in _columns(cells).items() for mode in modes]
    header = ["ref", "commit", *(f"{check} {mode}" for check, mode in columns), ""]
    lines = [
        [
            escape_markdown(row.commit.ref),
            escape_markdown(f"{row.commit.revision[:10]} {row.commit.date} {row.commit.subject}"),
            *(cell.get(column, "") for column in columns),
            escape_markdown(row.problem or ""),
        ]
        for row, cell in zip(rows, cells, strict=True)
    ]
    yield from markdown_table(header, lines)


def _columns(cells: Sequence[Cells]) -> dict[Check, list[Mode]]:
    """Returns the modes of each check that any commit has findings of."""
    columns = {
        check: [mode for mode in Mode if any((check, mode) in cell for cell in cells)]
        for check in Check
    }
    return {check: modes for check, modes in columns.items() if modes}


def _cells(row: HistoryRow) -> Cells:
    findings: dict[tuple[Check, Mode], list[Finding]] = defaultdict(list)
    for finding in row.report.findings if row.report else []:
        findings[finding.check, finding.mode].append(finding)
    return {column: _cell(of_column) for column, of_column in findings.items()}


def _cell(findings: Sequence[Finding]) -> str:
    """Returns counts of verdicts, and the names of the two commonest mistakes."""
    words = verdict_words(Counter(finding.verdict for finding in findings))
    names = Counter(finding.diagnosis.name for finding in findings if finding.diagnosis)
    if names and Verdict.MISMATCH in words:
        words[Verdict.MISMATCH] += f" ({', '.join(name for name, _ in names.most_common(2))})"
    return ", ".join(words.values())
