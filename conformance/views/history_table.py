"""The runs of a list of commits as a table: verdicts by commit, check and mode."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from conformance.findings.verdict import Check, Verdict
from conformance.views.tables import escape_markdown, markdown_table, text_table, verdict_words
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.finding import Finding
    from conformance.runs.history import Row

    Cells = dict[tuple[Check, Mode], str]

SUBJECT_WIDTH = 50
"""Characters of a commit's subject that a line shows."""


def as_text(rows: Sequence[Row]) -> Iterator[str]:
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


def as_markdown(rows: Sequence[Row]) -> Iterator[str]:
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


def _cells(row: Row) -> Cells:
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
