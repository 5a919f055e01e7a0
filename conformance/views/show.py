"""A report for a reader: in a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.comparing.groups import finding_groups, matrix
from conformance.findings.badness import legend, off_by
from conformance.findings.verdict import Verdict
from conformance.runs.reproduce import command
from conformance.views import markdown
from conformance.views.summary import SYMBOLS, advice, declined, subject, totals
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from rich.console import RenderableType

    from conformance.comparing.groups import FindingGroup
    from conformance.findings.report import Report

STYLES = {
    Verdict.CONFORMS: "green",
    Verdict.MISMATCH: "bold red",
    Verdict.REFUSED: "cyan",
    Verdict.UNSUPPORTED: "dim",
    Verdict.CRASHED: "bold magenta",
    Verdict.ADVICE: "yellow",
}

PIPED_WIDTH = 120
"""Columns where there is no terminal to ask."""


def as_text(report: Report) -> Iterator[str]:
    """For standard output, line by line: as wide as it is, coloured where colour is wanted."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    with console.capture() as captured:
        for part in _parts(report):
            console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    yield from map(str.rstrip, captured.get().splitlines())


def _parts(report: Report) -> Iterator[RenderableType]:
    """Verdicts by check and mode, then every mistake, the worst first."""
    yield Text(subject(report), style="bold")
    yield _matrix(report)
    for fault in finding_groups(report.findings):
        yield from _fault(report, fault)
        yield ""
    for line in advice(report.findings):
        yield Text(line, style=STYLES[Verdict.ADVICE])
    for line in (*legend(report.findings), *declined(report.findings)):
        yield Text(line, style="dim")
    yield Text(totals(report), style="bold")


def _matrix(report: Report) -> Table:
    cells = matrix(report.findings)
    modes = [mode for mode in Mode if any(mode in row for row in cells.values())]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", *modes):
        table.add_column(heading, overflow="fold")
    for check, row in cells.items():
        table.add_row(check, *(_cell(row[mode]) if mode in row else "–" for mode in modes))
    return table


def _cell(verdicts: Counter[Verdict]) -> Text:
    """Each verdict in its colour and word, so that none is told by colour alone."""
    return Text("\n").join(
        Text(f"{verdicts[verdict]} {SYMBOLS[verdict]}", style=STYLES[verdict])
        for verdict in Verdict
        if verdicts[verdict]
    )


def _fault(report: Report, fault: FindingGroup) -> Iterator[RenderableType]:
    verdict = fault.example.verdict
    yield Text.assemble(
        (SYMBOLS[verdict], STYLES[verdict]), f" {_count(fault)} ", (fault.name, "bold")
    )
    *details, again = _details(report, fault)
    for line in details:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2))
    yield Text(f"  {again}", no_wrap=True)  # to be copied


def _details(report: Report, fault: FindingGroup) -> Iterator[str]:
    example = fault.example
    off = off_by(example)
    yield f"{off} at most: {fault.words}" if off else fault.words
    yield f"in {_where(fault)}"
    if example.place:
        yield f"look at {example.place}"
    yield f"for example {example.id}"
    yield command(report, example)


def _count(fault: FindingGroup) -> str:
    return f"{len(fault.findings)} ×"


def _where(fault: FindingGroup) -> str:
    where = ", ".join(f"{name} ({count})" for name, count in fault.where.items())
    layouts = "1 layout" if fault.layouts == 1 else f"{fault.layouts} layouts"
    return f"{where}; {', '.join(fault.modes)}; {layouts}"


def as_markdown(report: Report) -> Iterator[str]:
    """The same, as a page of GitHub's Markdown, line by line; details are folded."""
    yield f"### {markdown.escape(subject(report))}"
    yield ""
    yield markdown.escape(totals(report))
    yield ""
    cells = matrix(report.findings)
    modes = [mode for mode in Mode if any(mode in row for row in cells.values())]
    yield markdown.row(["check", *modes])
    yield markdown.row(["---"] * (len(modes) + 1))
    for check, row in cells.items():
        counts = (row.get(mode) for mode in modes)
        yield markdown.row([check, *(_words(cell) if cell else "–" for cell in counts)])
    for fault in finding_groups(report.findings):
        yield ""
        yield from _folded(report, fault)
    for line in (*advice(report.findings), *legend(report.findings)):
        yield from ("", markdown.escape(line))


def _words(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{verdicts[v]} {SYMBOLS[v]}" for v in Verdict if verdicts[v])


def _folded(report: Report, fault: FindingGroup) -> Iterator[str]:
    heading = f"{SYMBOLS[fault.example.verdict]} {_count(fault)} {fault.name}"
    *details, again = _details(report, fault)
    yield f"<details><summary>{markdown.escape(heading)}: {markdown.escape(fault.words)}</summary>"
    yield ""
    for line in details:
        yield f"- {markdown.escape(line)}"
    yield from ("", "```sh", again, "```", "", "</details>")


def as_json(report: Report) -> Iterator[str]:
    """The same figures, for programs."""
    yield json.dumps(
        {
            "report": report.model_dump(
                mode="json", by_alias=True, exclude={"findings", "summary", "selection"}
            ),
            "summary": report.summary.model_dump(mode="json"),
            "matrix": matrix(report.findings),
            "faults": [_document(report, fault) for fault in finding_groups(report.findings)],
            "advice": [*advice(report.findings)],
        },
        indent=1,
        ensure_ascii=False,
    )


def _document(report: Report, fault: FindingGroup) -> dict[str, object]:
    return {
        "name": fault.name,
        "words": fault.words,
        "error": fault.error,
        "agreement": fault.example.agreement,
        "checks": fault.where,
        "modes": fault.modes,
        "place": fault.example.place,
        "example": fault.example.id,
        "command": command(report, fault.example),
        "findings": [finding.id for finding in fault.findings],
    }
