"""The ranks of the audit's lines among the suspects of the causes in the newest reports.

``python -m tests.tracing.audited_lines [REPORT …]`` prints them for reports like ``skyrl/v0.3.0``,
or for all reports on releases and main branches. A row of the audit may be about several causes,
and also names lines of documented options, so the source must settle a disagreement.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from conformance.comparing.report_file import load
from conformance.findings.cause import Cause, Severity
from conformance.findings.report import Report
from tests.test_audit import NEWEST, REPORTS, kind, rows

TRACED = (Severity.GRADIENT, Severity.LOGGED)


def audited_lines(cause: Cause, report: Report) -> set[tuple[str, int]]:
    """The lines that the rows of a cause's findings name."""
    by_id = {one.id: one for one in report.findings}
    kinds = {kind(by_id[name], report) for name in cause.findings}
    of_cause = [row for row in rows() if any(map(row.covers, kinds))]
    return {line for row in of_cause for line in row.lines}


def places(report: Report) -> Iterator[tuple[Cause, int | None]]:
    """Yield each cause with suspects, and the place of the first suspect that the audit names."""
    for cause in report.causes:
        if cause.severity in TRACED and cause.suspects:
            lines = audited_lines(cause, report)
            named = [(PurePath(one.file).name, one.line) in lines for one in cause.suspects]
            yield cause, named.index(True) + 1 if True in named else None


def main(names: Sequence[str]) -> None:
    """Print the place for each cause, and the number of causes with each place."""
    counted: Counter[int | None] = Counter()
    for name in names or [one for one in NEWEST if "pull" not in one]:
        for cause, place in places(load(REPORTS / f"{name}.json.gz")):
            counted[place] += 1
            suspects = ", ".join(f"{one.file}:{one.line}" for one in cause.suspects)
            print(f"{name} {cause.name}: {place or 'not suspected'} of {suspects}")
    print(", ".join(f"{place or 'not suspected'}: {number}" for place, number in counted.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
