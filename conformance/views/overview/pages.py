"""README.md's table, reports/causes.md and README.md, bug reports, and the web page."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.known import entry_of
from conformance.findings.cause import Harm
from conformance.findings.groups import shared_causes
from conformance.findings.verdict import Check, Verdict
from conformance.views import issue
from conformance.views.formatting import Tally, environment, escape_markdown, markdown_table
from conformance.views.overview.accusations import accusations
from conformance.views.overview.committed import REPORTS, newest
from conformance.views.web.page import render
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from enum import StrEnum

    from adapters.contract import Departure
    from conformance.findings.groups import SharedCause
    from conformance.findings.report import Report
    from conformance.views.overview.accusations import Accusation
    from conformance.views.overview.committed import CommittedReport


README = Path("README.md")
CAUSES = REPORTS / "causes.md"
INDEX = REPORTS / "README.md"
WEB_PAGE = REPORTS / "index.html"

BEGIN = "<!-- what reports/ say; written by `python -m conformance.views.overview` -->\n"
END = "<!-- end of what reports/ say -->\n"

MISTAKES = ["framework", "what users get", "mistake", "who meets it", "line", "upstream"]
"""The header of tables of mistakes."""

MOST_ROWS = 20
"""The most mistakes in README.md's table; `CAUSES` lists all."""


def mistake_rows(accused: Iterable[Accusation]) -> Iterator[list[str]]:
    """Yields a row for each mistake of the newest versions, linked to its bug report."""
    for one in accused:
        sentence = one.sentence.removesuffix(".")
        yield [
            one.framework,
            str(one.harm),
            f"{sentence} ([report]({one.path}))",
            one.reach,
            one.line,
            one.upstream,
        ]


def mistake_table(latest: Sequence[CommittedReport]) -> str:
    """Returns README.md's table: the worst mistakes of the newest versions, each once."""
    accused = accusations(latest)
    frameworks = {one.report.adapter for one in latest}
    of_frameworks = {one.framework for one in accused}
    clean = sorted(frameworks - of_frameworks)
    said = [
        f"{len(accused)} mistakes in {len(of_frameworks)} of {len(frameworks)} frameworks; "
        + (f"none was found in {' and '.join(clean)}. " if clean else "")
        + f"The worst {min(len(accused), MOST_ROWS)} are:",
        "",
        *markdown_table(MISTAKES, [*mistake_rows(accused)][:MOST_ROWS]),
    ]
    if len(accused) > MOST_ROWS:
        said += ["", f"The other {len(accused) - MOST_ROWS} are in [`causes.md`]({CAUSES})."]
    return _lines(said)


def cause_rows(found: Sequence[CommittedReport], harms: Collection[Harm]) -> Iterator[list[str]]:
    """Yields a row for each cause, the worst of each framework first."""
    for _, grouped in groupby(found, key=attrgetter("report.adapter")):
        versions = [*grouped]
        shared = shared_causes([one.report for one in versions])
        for harm in harms:
            yield from (_cause(one, versions) for one in shared if one.cause.harm is harm)


def _cause(shared: SharedCause, versions: Sequence[CommittedReport]) -> list[str]:
    """Returns the cells of a cause, worded as in the report that has most of its findings."""
    largest = max(shared.groups.values(), key=lambda group: len(group.findings))
    last = versions[next(iter(shared.groups))]
    entry = entry_of(last.report, shared.cause) if last in newest(versions) else None
    place = f"; look at `{largest.cause.place}`" if largest.cause.place else ""
    counts: dict[str, list[str]] = defaultdict(list)
    for at, group in reversed(shared.groups.items()):
        counts[versions[at].report.engine].append(f"{versions[at].name} ({len(group.findings)})")
    return [
        versions[0].report.adapter,
        shared.cause.effect,
        entry.reason if entry else f"{escape_markdown(shared.cause.statement)}{place}",
        str(largest.cause.impact),
        f"`{largest.smallest.id}`",
        "; ".join(f"{engine}: {', '.join(names)}" for engine, names in counts.items()),
    ]


def wrong_of_seen(
    found: Sequence[CommittedReport], field: str, values: Collection[StrEnum]
) -> list[list[str]]:
    """Returns a row for each report with a column for each value of a field of its findings.

    A cell has the number of wrong findings, and of wrong, right and refused findings together.
    """
    return [
        [
            *(one.report.adapter, one.report.engine, one.name),
            *(
                _wrong_of_seen(
                    Tally.of(each for each in one.report.findings if getattr(each, field) == value)
                )
                for value in values
            ),
        ]
        for one in found
    ]


def _wrong_of_seen(tally: Tally) -> str:
    if tally.wrong:
        return f"**{tally.wrong}** of {tally.seen}"
    words = [f"ok ({tally.right})"] if tally.right else []
    words += [f"refused ({tally.refused})"] if tally.refused else []
    return ", ".join(words) or "–"


def _conventions(found: Sequence[CommittedReport]) -> tuple[list[list[str]], list[str]]:
    """Returns a row for each convention, and a header; versions that agree share a column."""
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for one in found:
        answers = tuple(_answer(one.report, field.name) for field in fields(Conventions))
        columns[one.framework, answers].append(one.name)
    heads = [f"{framework}: {', '.join(names)}" for (framework, _), names in columns.items()]
    rows = [
        [f"`{field.name}`", *(answers[number] for _, answers in columns)]
        for number, field in enumerate(fields(Conventions))
    ]
    return rows, ["convention", *heads]


def _answer(report: Report, name: str) -> str:
    declared = getattr(report.conventions, name)
    if declared is None:
        return "–"
    return f"{declared}" if name in report.documented else f"{declared} (assumed)"


def _departures(found: Sequence[CommittedReport]) -> Iterator[list[str]]:
    """Yields a row for each departure of a framework, with the versions that have it."""
    for adapter, grouped in groupby(found, key=attrgetter("report.adapter")):
        versions = [*grouped]
        having: dict[Departure, list[str]] = defaultdict(list)
        for one in versions:
            for departure in one.report.departures:
                having[departure].append(f"{one.report.engine} {one.name}")
        for departure, names in having.items():
            known = "all" if len(names) == len(versions) else ", ".join(names)
            kind = departure.kind.replace("_", " ")
            yield [*map(escape_markdown, (adapter, kind, departure.what, departure.why, known))]


def pages(found: Sequence[CommittedReport], readme: str) -> dict[Path, str]:
    """Returns the text of each page; in README.md, only the table is replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    conventions, convention_header = _conventions(found)
    templates = environment()
    return {
        README: f"{before}{BEGIN}{mistake_table(newest(found))}{END}{after}",
        CAUSES: templates.get_template("causes.md.jinja").render(
            mistakes=[*mistake_rows(_below(CAUSES.parent, accusations(newest(found))))],
            mistakes_header=MISTAKES,
            header=["framework", "what", "cause", "impact", "for example", "versions"],
            wrong=cause_rows(found, [one for one in Harm if one is not Harm.ADVICE]),
            advice=cause_rows(found, [Harm.ADVICE]),
        ),
        INDEX: templates.get_template("reports.md.jinja").render(
            who=["framework", "engine", "version"],
            modes=[*Mode],
            by_mode=wrong_of_seen(found, "mode", [*Mode]),
            checks=[*Check],
            by_check=wrong_of_seen(found, "check", [*Check]),
            conventions=conventions,
            convention_header=convention_header,
            departures=_departures(found),
            files=[
                [
                    f"[`{one.file}`]({one.file})",
                    one.revision,
                    f"`{one.command}`",
                    _new_options(one.report),
                ]
                for one in found
            ],
        ),
    }


def _new_options(report: Report) -> str:
    """The number of options and choices of a version that no check covers."""
    if report.new_options is None:
        return "not looked up"
    return str(len(report.new_options))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def web_page(found: Sequence[CommittedReport]) -> dict[Path, str]:
    """Returns the web page of the newest versions: wrong and refused findings, and advice."""
    issues = {
        (f"{shown.report.adapter} {shown.report.engine}", shown.cause.statement): str(one.path)
        for one in _below(WEB_PAGE.parent, accusations(newest(found)))
        for shown in one.shown
    }
    reports = [one.report for one in newest(found)]
    return {WEB_PAGE: render(reports, [Verdict.CONFORMS, Verdict.UNSUPPORTED], issues)}


def issues(found: Sequence[CommittedReport]) -> dict[Path, str]:
    """Returns a bug report for each mistake of the newest versions."""
    return {
        one.path: _lines(
            issue.as_markdown(one.worst.version.report, one.worst.cause, one.elsewhere)
        )
        for one in accusations(newest(found))
    }


def _below(folder: Path, accused: Iterable[Accusation]) -> Iterator[Accusation]:
    """Yields mistakes with the paths of bug reports relative to the folder of a page."""
    for one in accused:
        yield replace(one, path=one.path.relative_to(folder))
