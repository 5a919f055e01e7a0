"""Tables of the runs of several commits: verdicts and causes by commit, and changes.

`watch_table` is the table of many frameworks, with each version next to a committed report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from textwrap import shorten
from typing import TYPE_CHECKING

from conformance.comparing import advised
from conformance.comparing.behaviour import BehaviourChange, said
from conformance.comparing.cause_changes import Fate, cause_changes, difference_in_common
from conformance.comparing.diff import ChangeKind, difference
from conformance.comparing.refused import newly_refused, no_longer_refused
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.findings.badness import failure
from conformance.findings.sanitize import printable
from conformance.findings.verdict import WRONG, Check, Verdict
from conformance.sources.source import SHORT
from conformance.views.formatting import escape_markdown, markdown_table, text_table, verdict_words
from conformance.views.versions.diff_formats import PROGRESS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.comparing.cause_changes import CauseChange
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.runs.versions.history import Row
    from conformance.runs.versions.watch import Target
    from conformance.views.overview.committed import CommittedReport

    Cells = dict[tuple[Check, Mode], str]

SUBJECT_WIDTH = 50
"""The most characters of a commit's subject in a line."""

NAME_WIDTH = 100
"""The most characters of a cause's name for which its condition is shown as well."""

FAILURE_WIDTH = 90
"""The most characters of a framework's failure in a cell."""

PROBLEM_WIDTH = 300
"""The most characters of the reason why a version is not driven."""

FOUND = (Fate.NEW, Fate.CHANGED, Fate.UNSEEN_BEFORE)
"""The fates of causes that `watch_table` lists as new."""

EXPLAINED = (ChangeKind.WORSE, ChangeKind.UNSEEN, ChangeKind.CHANGED)
"""Changes of findings whose commonest reason is shown if no cause explains them."""

WATCH = (
    "framework",
    "engine",
    "version",
    "driven",
    "new causes",
    "gone causes",
    "new options",
    "compared with",
)


def as_text(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a table for each check, with a line for each commit, and then the causes by commit."""
    labels = [_label(row) for row in rows]
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
    of_rows = zip(rows, labels, _changes(rows), _behaviours(rows), strict=True)
    for row, label, changes, behaviour in of_rows:
        yield f"{label}: {row.commit.date} {row.commit.subject[:SUBJECT_WIDTH]}".rstrip()
        if row.problem is not None:
            yield f"  {row.problem}"
        yield from (f"  {printable(_change(change))}" for change in changes)
        yield from (f"  {printable(words)}" for words in behaviour)


def as_markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yields one table; the last columns have the causes, and the reason for a failed run."""
    cells = [_cells(row) for row in rows]
    columns = [(check, mode) for check, modes in _columns(cells).items() for mode in modes]
    header = ["ref", "commit", *(f"{check} {mode}" for check, mode in columns), "causes", ""]
    lines = [
        [
            escape_markdown(row.commit.ref),
            escape_markdown(
                f"{row.commit.revision[:SHORT]} {row.commit.date} {row.commit.subject}"
            ),
            *(cell.get(column, "") for column in columns),
            _list_cell(map(_change, changes)),
            escape_markdown(row.problem or ""),
        ]
        for row, cell, changes in zip(rows, cells, _changes(rows), strict=True)
    ]
    yield from markdown_table(header, lines)


def watch_table(rows: Iterable[tuple[Target, Row, CommittedReport | None]]) -> Iterator[str]:
    """Yields one table of Markdown, each line as soon as its version has run."""
    yield from markdown_table(WATCH, (_watched(*row) for row in rows))


def _watched(target: Target, row: Row, reported: CommittedReport | None) -> Iterator[str]:
    """Yields the cells of one version, compared with a committed report."""
    revision = row.commit.revision[:SHORT] if row.commit.date else ""
    old = reported.report if reported else None
    words, new, gone = _compared(old, row.report) if row.report else ("", [], [])
    known = (old.new_options if old else None) or ()
    options = (row.report.new_options if row.report else None) or ()
    yield target.adapter.name
    yield target.adapter.engine
    yield escape_markdown(" ".join(filter(None, [row.commit.ref, revision, row.commit.date])))
    driven = [f"yes: {words}" if words else "", row.unreached]
    yield escape_markdown(shorten(row.problem or "; ".join(filter(None, driven)), PROBLEM_WIDTH))
    yield _list_cell(map(_change, new))
    yield _list_cell(map(_change, gone))
    yield _list_cell(option for option in options if option not in known)
    yield reported.file if reported else "no committed report"


def _compared(old: Report | None, new: Report) -> tuple[str, list[CauseChange], list[CauseChange]]:
    """Returns words on changed findings, the new causes and the causes that are gone.

    The words include the commonest reason for changes, unless causes explain them.
    """
    if old is None:
        return f"{len(new.findings)} findings", cause_changes(difference(new, new)), []
    found = difference_in_common(old, new)
    changes = cause_changes(found)
    counts = Counter(one.kind for one in found.changes)
    words = [f"{counts[kind]} {words}" for kind, words in PROGRESS.items() if counts[kind]]
    changed = [one.new for kind in EXPLAINED for one in found.of(kind) if one.new]
    reasons = Counter(failure(one) for one in changed if one.verdict not in WRONG)
    why = "".join(f"; {reason}" for reason, _ in reasons.most_common(1))
    return (
        f"{', '.join(words) or 'no finding of it is in the report'}{why}",
        [change for change in changes if change.fate in FOUND],
        [change for change in changes if change.fate is Fate.GONE],
    )


def _list_cell(lines: Iterable[str]) -> str:
    return "<br>".join(map(escape_markdown, lines))


def _label(row: Row) -> str:
    return " ".join(dict.fromkeys([row.commit.revision[:SHORT], row.commit.ref]))


def _changes(rows: Sequence[Row]) -> Iterator[list[CauseChange]]:
    """Yields the changes of causes of each commit since the last complete run before it."""
    for row, last in zip(rows, _complete_before(rows), strict=True):
        if row.report is None:
            yield []
        elif last is None or not row.report.complete:
            yield cause_changes(difference(row.report, row.report))
        else:
            yield cause_changes(difference(last, row.report))


def _behaviours(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yields refusals, advice and numbers of each commit that differ from the last complete run."""
    for row, last in zip(rows, _complete_before(rows), strict=True):
        if row.report is None or last is None:
            yield []
        else:
            found = difference_in_common(last, row.report)
            refusals = [*newly_refused(found), *no_longer_refused(found)]
            yield [*refusals, *advised.said(found), *said(BehaviourChange(last, row.report))]


def _complete_before(rows: Sequence[Row]) -> Iterator[Report | None]:
    """Yields the last complete report before each commit."""
    last: Report | None = None
    for row in rows:
        yield last
        if row.report is not None and row.report.complete:
            last = row.report


def _change(change: CauseChange) -> str:
    """Returns a cause's name, after its fate unless the cause is unchanged."""
    name, *before = [_name(one) for one in (change.new, change.old) if one is not None]
    if change.fate is Fate.SAME:
        return name
    known = f"it was: {before[0]}" if before else change.became
    return f"{change.fate}: {name}{f' ({known})' if known else ''}"


def _name(cause: Cause) -> str:
    """Returns the mistake, with its condition if that is short, or the framework's failure."""
    if cause.name not in MISTAKES or MISTAKES[cause.name].kind is Kind.RULE:
        return f"{cause.name}: {cause.statement[:FAILURE_WIDTH]}"
    named = " ".join([cause.name, *cause.condition])
    return named if len(named) <= NAME_WIDTH else cause.name


def _columns(cells: Sequence[Cells]) -> dict[Check, list[Mode]]:
    """Returns the modes of each check for which any commit has findings."""
    columns = {
        check: [mode for mode in Mode if any((check, mode) in cell for cell in cells)]
        for check in Check
    }
    return {check: modes for check, modes in columns.items() if modes}


def _cells(row: Row) -> Cells:
    if row.report is None:
        return {}
    findings: dict[tuple[Check, Mode], list[Finding]] = defaultdict(list)
    for finding in row.report.findings:
        findings[finding.check, finding.mode].append(finding)
    return {column: _cell(some, row.report.causes) for column, some in findings.items()}


def _cell(findings: Sequence[Finding], causes: Sequence[Cause]) -> str:
    """Returns counts of verdicts, and the names of the causes of mismatches."""
    words = verdict_words(Counter(finding.verdict for finding in findings))
    wrong = {finding.id for finding in findings if finding.verdict is Verdict.MISMATCH}
    if wrong:
        names = dict.fromkeys(one.name for one in causes if not wrong.isdisjoint(one.findings))
        words[Verdict.MISMATCH] += f" ({', '.join(names)})"
    return ", ".join(words.values())
