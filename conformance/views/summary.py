"""A report in a terminal: verdicts by mode and layout, then a line for each thing that is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from conformance.findings.badness import explain, legend
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import WRONG, Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Layout
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

SYMBOLS = {
    Verdict.CONFORMS: "ok",
    Verdict.MISMATCH: "MISMATCH",
    Verdict.REFUSED: "refused",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.CRASHED: "CRASHED",
    Verdict.ADVICE: "advice",
}


def summary_lines(report: Report) -> Iterator[str]:
    """The whole summary, line by line."""
    yield subject(report)
    yield ""
    for check in Check:
        of_check = [finding for finding in report.findings if finding.check is check]
        if of_check:
            yield from _matrix(check, of_check)
            yield ""
    wrong = [finding for finding in report.findings if finding.verdict in WRONG]
    yield from map(_line, wrong)
    yield from advice(report.findings)
    yield from legend(wrong)
    yield from declined(report.findings)
    yield totals(report)


def subject(report: Report) -> str:
    """What was run, in one line."""
    source = report.source
    code = source.version or (source.revision or "")[:12]
    ref = f" ({source.ref})" if source.ref else ""
    dirty = ", with uncommitted changes" if source.dirty else ""
    depths = ", ".join(sorted({finding.depth for finding in report.findings}))
    return (
        f"{report.adapter} {code}{ref}{dirty}, engine {report.engine}, depth {depths or 'none'},"
        f" {report.environment.hardware}"
    )


def _matrix(check: Check, findings: Sequence[Finding]) -> Iterator[str]:
    """A row for each layout, a column for each mode; a cell counts its cases by verdict."""
    cells: dict[tuple[Layout, Mode], Counter[Verdict]] = defaultdict(Counter)
    for finding in findings:
        cells[finding.layout, finding.mode][finding.verdict] += 1
    modes = [mode for mode in Mode if any(column is mode for _, column in cells)]
    layouts = sorted({layout for layout, _ in cells}, key=_layout_order)
    rows = [[check, *modes]] + [
        [str(layout), *(_cell(cells[layout, mode]) for mode in modes)] for layout in layouts
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _layout_order(layout: Layout) -> tuple[int, str]:
    return layout.world_size, str(layout)


def _cell(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{verdicts[v]} {SYMBOLS[v]}" for v in Verdict if verdicts[v])


def _line(finding: Finding) -> str:
    return f"{SYMBOLS[finding.verdict]} {finding.id}: {explain(finding)}"


def advice(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each piece of advice, with its count."""
    pieces = Counter(explain(finding) for finding in findings if finding.verdict is Verdict.ADVICE)
    for words, count in pieces.items():
        yield f"advice ({count}): {words}"


def declined(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each reason that something was not run, with its count.

    What was refused because it must be is no reason of that kind.
    """
    demanded = (Check.ARGUMENTS, Check.LOGGING)
    reasons = Counter(
        (finding.verdict, last_line(finding.message))
        for finding in findings
        if finding.verdict is Verdict.UNSUPPORTED
        or (finding.verdict is Verdict.REFUSED and finding.check not in demanded)
    )
    for (verdict, reason), count in sorted(reasons.items()):
        yield f"{verdict} ({count}): {reason}"


def totals(report: Report) -> str:
    """How many findings of each verdict, in one line."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.summary.verdicts.items())
    errors = [f.error for f in report.findings if f.verdict is Verdict.CONFORMS and f.error]
    largest = f"; largest error of what conforms {max(errors):.2g}" if errors else ""
    stopped = "" if report.complete else "; stopped before the end"
    return f"{counts or 'no findings'}{largest}{stopped}"
