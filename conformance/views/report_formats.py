"""A report as text for the terminal, Markdown, JSON, and annotations of a job on GitHub."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.comparing.known import entry_of, known
from conformance.findings.badness import explain, failure
from conformance.findings.finding import GENERATED
from conformance.findings.groups import advice_groups, finding_groups
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import Check, Verdict
from conformance.runs.options import command
from conformance.views.formatting import SYMBOLS, matrix_rows, verdict_matrix, verdict_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.groups import FindingGroup
    from conformance.findings.report import Report
    from reference.aggregation import Mode

STYLES = {
    Verdict.CONFORMS: "green",
    Verdict.MISMATCH: "bold red",
    Verdict.REFUSED: "cyan",
    Verdict.UNSUPPORTED: "dim",
    Verdict.DECLINED: "bold magenta",
    Verdict.CRASHED: "bold magenta",
    Verdict.ADVICE: "yellow",
    Verdict.NOT_DRIVEN: "dim",
}

PIPED_WIDTH = 120
"""The width of text in columns if output does not go to a terminal."""

NO_FINDINGS = "–"
"""The content of a cell without findings."""


MOST_BYTES = 1_000_000
"""The largest summary of a step; GitHub refuses summaries of more than 1 MiB."""

MOST_ANNOTATIONS = 10
"""The most annotations of one kind in a step; GitHub silently drops more."""


def title(report: Report) -> str:
    """Returns one line on the version, engine and hardware of a run."""
    source = report.source
    code = source.version or (source.revision or "")[:12]
    ref = f" ({source.ref})" if source.ref else ""
    dirty = ", with uncommitted changes" if source.dirty else ""
    depths = ", ".join(sorted({finding.depth for finding in report.findings}))
    return (
        f"{report.adapter} {code}{ref}{dirty}, engine {report.engine}, depth {depths or 'none'},"
        f" {report.environment.hardware}"
    )


def _fault(fault: str) -> str:
    return f"fault of the harness: {fault}"


def _advice(report: Report) -> Iterator[str]:
    """Yields a line for each kind of advice, with its number of findings and an example."""
    for group in advice_groups(report):
        words = f"for example {group.example.id}: {explain(group.example)}"
        yield f"advice ({len(group.findings)}): {group.cause.statement}; {words}"


def _new_options(report: Report) -> Iterator[str]:
    """Yields a line with the version's options that the adapter does not know, if there are any."""
    if report.new_options:
        yield f"offers {', '.join(report.new_options)}: not looked at, as the adapter knows none"


def _reasons_not_run(report: Report) -> Iterator[str]:
    """Yields a line for each verdict that means not run, with all reasons, the commonest first.

    Refusals that the contract requires are left out.
    """
    for verdict in (Verdict.REFUSED, Verdict.UNSUPPORTED, Verdict.NOT_DRIVEN):
        reasons: dict[str, list[str]] = defaultdict(list)
        for finding in report.findings:
            if finding.verdict is verdict and not finding.is_rightly_refused:
                reasons[numberless(words := failure(finding))].append(words)
        alike = sorted(reasons.values(), key=len, reverse=True)
        if alike:
            counted = "; ".join(f"{words[0]} ({len(words)})" for words in alike)
            yield f"{SYMBOLS[verdict]}: {counted}"


def _totals(report: Report) -> str:
    """Returns one line with the number of findings of each verdict."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.summary.verdicts.items())
    errors = [f.error for f in report.findings if f.verdict is Verdict.CONFORMS and f.error]
    largest = f"; largest error of what conforms {max(errors):.2g}" if errors else ""
    stopped = "" if report.complete else "; stopped before the end"
    return f"{counts or 'no findings'}{largest}{stopped}"


def as_text(report: Report) -> Iterator[str]:
    """Yields lines for standard output, as wide as the terminal and coloured if it has colours."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    with console.capture() as captured:
        for part in _parts(report):
            console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    yield from map(str.rstrip, captured.get().splitlines())


def _parts(report: Report) -> Iterator[RenderableType]:
    """Yields every cause, the worst first, then advice, and verdicts by check and mode."""
    yield Text(title(report), style="bold")
    yield ""
    if report.fault is not None:
        yield Text(_fault(report.fault), style="bold red")
        yield ""
    for group in finding_groups(report):
        yield from _coloured_group(report, group)
        yield ""
    for line in _advice(report):
        yield Text(line, style=STYLES[Verdict.ADVICE])
    yield _coloured_matrix(report)
    for line in _reasons_not_run(report):
        yield Text(line, style="dim")
    for line in _new_options(report):
        yield Text(line, style=STYLES[Verdict.ADVICE])
    yield Text(_totals(report), style="bold")


def _matrix(report: Report) -> dict[Check, dict[Mode, Counter[Verdict]]]:
    return verdict_matrix(report.findings, "check", Check)


def _coloured_matrix(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", *report.summary.modes):
        table.add_column(heading, overflow="fold")
    for check, cells in _matrix(report).items():
        counts = (_coloured_counts(cells.get(mode, {})) for mode in report.summary.modes)
        table.add_row(check, *counts)
    return table


def _coloured_counts(verdicts: Mapping[Verdict, int]) -> Text:
    """Returns the count of each verdict, in its colour and in words."""
    words = verdict_words(verdicts).items()
    counts = [Text(text, style=STYLES[verdict]) for verdict, text in words]
    return Text("\n").join(counts or [Text(NO_FINDINGS)])


def _coloured_group(report: Report, group: FindingGroup) -> Iterator[RenderableType]:
    yield Text(_heading(group), style=STYLES[group.example.verdict])
    for line in _details(report, group):
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2))
    yield Text(f"  {command(report, group.smallest)}", no_wrap=True)  # so that it can be copied


def _details(report: Report, group: FindingGroup) -> Iterator[str]:
    """Yields the effect of a cause and its place: the audited line, or else suspected lines."""
    said = str(group.cause.impact)
    yield f"{group.cause.effect}{f': {said}' if said else ''}"
    yield from _known(report, group.cause)
    yield f"in {_where(group)}"
    yield f"for example {group.example.id}: {explain(group.example)}"
    entry = entry_of(report, group.cause)
    for suspect in () if entry and entry.line else group.cause.suspects:
        yield f"look at {suspect}"
    if group.smallest.case == GENERATED and group.smallest.message:
        yield from group.smallest.message.splitlines()


def _known(report: Report, cause: Cause) -> Iterator[str]:
    """For audited frameworks, yields the known fault behind a cause, or says that there is none."""
    audited = known(report.adapter, report.engine)
    if audited is None:
        return
    entry = audited.of(cause)
    if entry is None:
        yield "not known before: it was never held against the framework's source"
        return
    yield f"known: {entry.reason}"
    where = [entry.line, f"upstream: {entry.upstream}", entry.link]
    yield f"  {'; '.join(filter(None, where))}"


def _heading(group: FindingGroup) -> str:
    """Returns one line on a cause: the number of its findings, and its statement."""
    symbol, count = SYMBOLS[group.example.verdict], len(group.findings)
    return f"{symbol} {count} × {group.cause.statement} [{group.cause.name}]"


def _where(group: FindingGroup) -> str:
    where = ", ".join(f"{name} ({count})" for name, count in group.checks.items())
    layouts = "1 layout" if group.layouts == 1 else f"{group.layouts} layouts"
    return f"{where}; {', '.join(group.modes)}; {layouts}"


def as_markdown(report: Report) -> Iterator[str]:
    """Yields a page in GitHub's Markdown with the same content as the text, with details folded."""
    from conformance.views.formatting import environment

    header, *rows = matrix_rows("check", _matrix(report), empty=NO_FINDINGS)
    text = (
        environment()
        .get_template("report.md.jinja")
        .render(
            report=report,
            title=title(report),
            fault=_fault(report.fault or ""),
            totals=_totals(report),
            causes=[
                (_heading(group), [*_details(report, group)], command(report, group.smallest))
                for group in finding_groups(report)
            ],
            advice=[*_advice(report)],
            new_options=[*_new_options(report)],
            header=header,
            rows=rows,
        )
    )
    yield from text.rstrip().split("\n")


def as_json(report: Report) -> Iterator[str]:
    """Yields one JSON document for programs, with the same content."""
    yield json.dumps(
        {
            "report": report.model_dump(
                mode="json",
                by_alias=True,
                exclude={"findings", "summary", "selection", "causes", "clues"},
            ),
            "summary": report.summary.model_dump(mode="json"),
            "matrix": _matrix(report),
            "causes": [_document(report, group) for group in finding_groups(report)],
            "advice": [_document(report, group) for group in advice_groups(report)],
        },
        indent=1,
        ensure_ascii=False,
    )


def _document(report: Report, group: FindingGroup) -> dict[str, object]:
    return {
        **group.cause.model_dump(mode="json", exclude={"findings"}),
        "checks": group.checks,
        "modes": group.modes,
        "example": group.example.id,
        "smallest": group.smallest.id,
        "command": command(report, group.smallest),
        "findings": [finding.id for finding in group.findings],
    }


def add_summary(report: Report, more: Sequence[str], path: Path) -> None:
    """Appends the report as Markdown, and lines of text, to the summary of the job's step.

    Raises:
        OSError: they cannot be written; the error's file name is ``path``.
    """
    from conformance.views.formatting import preformatted

    text = ["", *preformatted(more)] if more else []
    page = "\n".join([*as_markdown(report), *text]) + "\n"
    try:
        with path.open("ab") as file:
            file.write(page.encode()[:MOST_BYTES].decode(errors="ignore").encode())
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def _suspected(cause: Cause) -> tuple[str, int] | None:
    """Returns the file and line of the first suspect, if there is one."""
    return next(((one.file, one.line) for one in cause.suspects), None)


def error_commands(
    report: Report,
    failing: Sequence[Finding],
    objections: Sequence[str] = (),
    place: Callable[[Cause], tuple[str, int] | None] = _suspected,
) -> Iterator[str]:
    """Yields GitHub runner commands that annotate the run, and each cause at its place.

    The worst cause comes first. A run with a fault of the harness has no other annotation.
    """
    if report.fault is not None:
        yield f"::error::{_data(_fault(report.fault))}"
        return
    for words in objections:
        yield f"::error::{_data(words)}"
    found = finding_groups(report, failing)
    for group in found[:MOST_ANNOTATIONS]:
        name = f"{group.cause.name} ({len(group.findings)})"
        words = f"{group.example.id}: {group.cause.statement}"
        at = place(group.cause)
        where = f"file={_property(at[0])},line={at[1]}," if at else ""
        yield f"::error {where}title={_property(name)}::{_data(words)}"


def _data(text: str) -> str:
    """Escapes the text of a GitHub runner command, as GitHub's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
