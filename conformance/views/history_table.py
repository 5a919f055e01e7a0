"""The runs of a list of commits as a table: verdicts by commit, check and mode."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from conformance.findings.verdict import Check, Verdict
from conformance.views.summary import SYMBOLS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.finding import Finding
    from conformance.runs.history import Row

Format = Literal["text", "markdown"]

Column = tuple[Check, Mode]

SUBJECT_WIDTH = 50
"""Characters of a commit's subject that a row shows."""


def table(rows: Sequence[Row], form: Format) -> Iterator[str]:
    """A row for each commit, a column for each check and mode that was looked at, line by line."""
    cells = [_cells(row) for row in rows]
    columns = [
        (check, mode) for check in Check for mode in Mode if any((check, mode) in c for c in cells)
    ]
    if form == "markdown":
        yield from _markdown(rows, cells, columns)
    else:
        yield from _text(rows, cells, columns)


def _cells(row: Row) -> dict[Column, str]:
    findings: dict[Column, list[Finding]] = {}
    for finding in row.report.findings if row.report else []:
        findings.setdefault((finding.check, finding.mode), []).append(finding)
    return {column: _cell(found) for column, found in findings.items()}


def _cell(findings: Sequence[Finding]) -> str:
    """Counts of verdicts, with the names of what explains the mismatches, commonest first."""
    verdicts = Counter(finding.verdict for finding in findings)
    names = Counter(finding.diagnosis.name for finding in findings if finding.diagnosis)
    leading = f" ({', '.join(name for name, _ in names.most_common(2))})" if names else ""
    return ", ".join(
        f"{verdicts[verdict]} {SYMBOLS[verdict]}{leading if verdict is Verdict.MISMATCH else ''}"
        for verdict in Verdict
        if verdicts[verdict]
    )


def _text(
    rows: Sequence[Row], cells: Sequence[dict[Column, str]], columns: Sequence[Column]
) -> Iterator[str]:
    """A block for each check, as wide as its cells."""
    labels = [f"{row.commit.revision[:10]} {row.commit.ref}" for row in rows]
    for check in [check for check in Check if any(column[0] is check for column in columns)]:
        modes = [mode for column, mode in columns if column is check]
        lines = [[check.value, *modes]] + [
            [label, *(cell.get((check, mode), "") for mode in modes)]
            for label, cell in zip(labels, cells, strict=True)
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
            yield "  ".join(padded).rstrip()
        yield ""
    for row, label in zip(rows, labels, strict=True):
        yield f"{label}: {row.commit.date} {row.commit.subject[:SUBJECT_WIDTH]}".rstrip()
        if row.problem is not None:
            yield f"  {row.problem}"


def _markdown(
    rows: Sequence[Row], cells: Sequence[dict[Column, str]], columns: Sequence[Column]
) -> Iterator[str]:
    """One table; what could not be run says so in its last column."""
    header = ["ref", "commit", *(f"{check} {mode}" for check, mode in columns), ""]
    yield _markdown_line(header)
    yield _markdown_line(["---"] * len(header))
    for row, cell in zip(rows, cells, strict=True):
        commit = f"{row.commit.revision[:10]} {row.commit.date} {row.commit.subject}"
        found = [cell.get(column, "") for column in columns]
        yield _markdown_line([row.commit.ref, commit, *found, row.problem or ""])


def _markdown_line(texts: Iterable[str]) -> str:
    escaped = (text.replace("|", "\\|") for text in texts)
    return f"| {' | '.join(escaped)} |"
