"""README.md's table, reports/causes.md and README.md, bug reports, and the web page."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal

from conformance.comparing.groups import finding_groups, shared_causes
from conformance.explain.impact import impact_words
from conformance.findings.cause import Severity
from conformance.findings.verdict import JUDGED, WRONG, Check, Verdict
from conformance.views import issue
from conformance.views.overview.committed import newest
from conformance.views.tables import escape_markdown, markdown_table
from conformance.views.web.page import render
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from enum import StrEnum

    from adapters.contract import Departure
    from conformance.comparing.groups import FindingGroup, SharedCause
    from conformance.findings.report import Report
    from conformance.views.overview.committed import Version

REPORTS = Path("reports")
README = Path("README.md")
CAUSES = REPORTS / "causes.md"
INDEX = REPORTS / "README.md"
WEB_PAGE = REPORTS / "index.html"
ISSUES = REPORTS / "issues"

BEGIN = "<!-- what reports/ say; written by `python -m conformance.views.overview` -->\n"
END = "<!-- end of what reports/ say -->\n"

HEAD = """\
# Causes

The mistakes behind all that the reports in this folder say is wrong: a line for each cause of a
framework's engine, with what it does, its smallest reproduction, and the versions that have it with
the number of findings that it explains. Where the mistake determines a place in the framework's
code, it stands behind the words. Written by `python -m conformance.views.overview`.
How each kind was held against the framework's own source and documents is in
[`audit.md`](audit.md).
"""

ADVICE_HEAD = """
## Advice

What breaks no promise of the framework's and is counted nowhere as wrong: rules that another
framework states and this one does not, and documented conventions that make a term depend on how a
step is cut.
"""

INDEX_HEAD = """\
# Reports

What the harness wrote for released versions and for pull requests, one folder per adapter, never
edited by hand. A file is named after the version, with the commit where a name can move, and with
the engine where it is not the adapter's default; its `source` has the exact revision, its
`environment` the versions of what it ran with. What a run writes of its own accord goes to
`reports/latest/`, which git ignores. This page is written by
`python -m conformance.views.overview`.

[`index.html`](index.html) is a web page of what is wrong in the newest version of each framework,
which GitHub Pages serves. [`causes.md`](causes.md) has the causes of all that is wrong, and
[`issues/`](issues) a bug report on each of those in the newest version of each framework.
[`history.md`](history.md) is a table of fixes, each run before and after;
[`mutants.md`](mutants.md) and [`mutation.md`](mutation.md) are about this project's own tests.

`rl-loss-conformance show REPORT` shows one of them, `rl-loss-conformance diff OLD NEW` what changed
between two, of one framework or of two.

## Frameworks side by side

How many findings are wrong, of how many, by mode and by check; *refused* are ordinary steps that a
framework refuses to train, and `–` stands where it has nothing of the kind.
"""

CONVENTIONS_HEAD = """
## Conventions

What the modes leave open, as each framework documents it; what no document says is read off the
code, and marked as assumed. A difference between columns is one between frameworks, and no mistake.
"""

DEPARTURES_HEAD = """
## What a run does otherwise than a user's

Options that an adapter sets, code that it stubs or passes by, and what lies above the call at which
it enters and is not run; each with the reason why no verdict depends on it. Packages replaced by
empty ones are in the reports' `environment`.
"""

FILES_HEAD = """
## How each file was made

CLONE is a clone of the framework's repository, with its pull requests fetched.
"""


MOST_CAUSES = 3
"""Causes of a version in README.md's table; all are in `CAUSES`."""

LONGEST = 120
"""Characters of a statement in README.md's table; all of it is in `CAUSES`."""


def worst_causes(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each report: how many findings are wrong, and the worst causes of that."""
    rows = (
        [one.report.adapter, one.report.engine, one.name, *_worst_causes(one.report)]
        for one in found
    )
    yield from markdown_table(["framework", "engine", "version", "wrong", "causes"], rows)


def _worst_causes(report: Report) -> Iterator[str]:
    seen = sum(report.summary.verdicts.get(verdict, 0) for verdict in JUDGED)
    wrong = sum(report.summary.verdicts.get(verdict, 0) for verdict in WRONG)
    yield f"**{wrong}** of {seen}" if wrong else f"none of {seen}"
    groups = finding_groups(report)
    named = [_brief(group) for group in groups[:MOST_CAUSES]]
    more = [f"{len(groups) - MOST_CAUSES} more"] if len(groups) > MOST_CAUSES else []
    yield "; ".join([*named, *more]) or "–"


def _brief(group: FindingGroup) -> str:
    statement = shorten(group.cause.statement, LONGEST, placeholder=" …")
    return f"{escape_markdown(statement)} ({len(group.findings)})"


def wrong_of_seen(
    found: Sequence[Version], field: Literal["check", "mode"], values: Iterable[StrEnum]
) -> Iterator[str]:
    """Yields a line for each report and a column for each value of a field of its findings.

    A cell says how many findings are wrong, of how many.
    """
    values = [*values]
    rows = [
        [
            one.report.adapter,
            one.report.engine,
            one.name,
            *_wrong_of_seen(one.report, field, values),
        ]
        for one in found
    ]
    yield from markdown_table(["framework", "engine", "version", *values], rows)


def _wrong_of_seen(report: Report, field: str, values: Iterable[StrEnum]) -> Iterator[str]:
    seen = Counter(getattr(f, field) for f in report.findings if f.verdict in JUDGED)
    wrong = Counter(getattr(f, field) for f in report.findings if f.verdict in WRONG)
    refused = Counter(
        getattr(f, field)
        for f in report.findings
        if f.verdict is Verdict.REFUSED and not f.is_rightly_refused
    )
    for value in values:
        right = seen[value] - refused[value]
        words = [f"ok ({right})"] if right else []
        words += [f"refused ({refused[value]})"] if refused[value] else []
        yield f"**{wrong[value]}** of {seen[value]}" if wrong[value] else ", ".join(words) or "–"


def wrong_causes(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each cause of what is wrong, the worst of each framework first."""
    return _causes_of(found, [one for one in Severity if one is not Severity.ADVICE])


def advice_causes(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each form of advice."""
    return _causes_of(found, [Severity.ADVICE])


def _causes_of(found: Sequence[Version], severities: Sequence[Severity]) -> Iterator[str]:
    header = ["framework", "engine", "what", "cause", "impact", "for example", "versions"]
    rows = (
        _cause(shared, versions)
        for _, grouped in groupby(found, key=attrgetter("framework"))
        for versions in [[*grouped]]
        for severity in severities
        for shared in shared_causes([one.report for one in versions])
        if shared.cause.severity is severity
    )
    yield from markdown_table(header, rows)


def _cause(shared: SharedCause, versions: Sequence[Version]) -> list[str]:
    """Returns the cells of a cause, as the version says it that has most of its findings."""
    largest = max(shared.groups.values(), key=lambda group: len(group.findings))
    place = f"; look at `{largest.cause.place}`" if largest.cause.place else ""
    counts = [(versions[at].name, len(group.findings)) for at, group in shared.groups.items()]
    return [
        versions[0].report.adapter,
        versions[0].report.engine,
        shared.cause.severity,
        f"{escape_markdown(shared.cause.statement)}{place}",
        impact_words(largest.cause.impact),
        f"`{largest.smallest.id}`",
        _list(f"{version} ({count})" for version, count in reversed(counts)),
    ]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def conventions(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each convention; a framework's versions that agree share a column."""
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for one in found:
        answers = tuple(_answer(one.report, field.name) for field in fields(Conventions))
        columns[one.framework, answers].append(one.name)
    heads = [f"{framework}: {_list(names)}" for (framework, _), names in columns.items()]
    rows = [
        [f"`{field.name}`", *(answers[number] for _, answers in columns)]
        for number, field in enumerate(fields(Conventions))
    ]
    yield from markdown_table(["convention", *heads], rows)


def _answer(report: Report, name: str) -> str:
    declared = getattr(report.conventions, name)
    if declared is None:
        return "–"
    return f"{declared}" if name in report.documented else f"{declared} (assumed)"


def departures(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each departure of an engine, with the versions that have it."""
    versions: dict[tuple[str, Departure], list[str]] = defaultdict(list)
    for one in found:
        for departure in one.report.departures:
            versions[one.framework, departure].append(one.name)
    rows = [
        [engine, departure.kind.replace("_", " "), departure.what, departure.why, _list(names)]
        for (engine, departure), names in versions.items()
    ]
    header = ["engine", "kind", "what", "why no verdict depends on it", "versions"]
    yield from markdown_table(header, (map(escape_markdown, row) for row in rows))


def files(found: Sequence[Version]) -> Iterator[str]:
    """Yields a line for each report with its revision and the command that makes it."""
    rows = [[f"[`{one.file}`]({one.file})", one.revision, f"`{one.command}`"] for one in found]
    yield from markdown_table(["file", "revision", "command"], rows)


def pages(found: Sequence[Version], readme: str) -> dict[Path, str]:
    """Returns the text of each page, that of README.md with its table renewed."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    by_mode, by_check = wrong_of_seen(found, "mode", Mode), wrong_of_seen(found, "check", Check)
    return {
        README: f"{before}{BEGIN}{_lines(worst_causes(newest(found)))}{END}{after}",
        CAUSES: f"{HEAD}\n{_lines(wrong_causes(found))}"
        f"{ADVICE_HEAD}\n{_lines(advice_causes(found))}",
        INDEX: f"{INDEX_HEAD}\n{_lines(by_mode)}\n{_lines(by_check)}"
        f"{CONVENTIONS_HEAD}\n{_lines(conventions(found))}"
        f"{DEPARTURES_HEAD}\n{_lines(departures(found))}"
        f"{FILES_HEAD}\n{_lines(files(found))}",
    }


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def web_page(found: Sequence[Version]) -> dict[Path, str]:
    """Returns the web page of the newest versions, which lists what is wrong, refused or advice."""
    reports = [one.report for one in newest(found)]
    return {WEB_PAGE: render(reports, left_out=[Verdict.CONFORMS, Verdict.UNSUPPORTED])}


def issues(found: Sequence[Version]) -> dict[Path, str]:
    """Returns a bug report for each cause of what is wrong in the newest versions.

    Of several causes of one name, the second has a 2 behind its name, and so on.
    """
    texts: dict[Path, str] = {}
    for one in newest(found):
        taken: Counter[str] = Counter()
        for cause in one.report.causes:
            if cause.severity is not Severity.ADVICE:
                taken[cause.name] += 1
                number = f"-{taken[cause.name]}" if taken[cause.name] > 1 else ""
                name = f"{one.report.adapter}-{one.report.engine}-{cause.name}{number}.md"
                texts[ISSUES / name] = _lines(issue.as_markdown(one.report, cause))
    return texts
