"""README.md's table, reports/causes.md and README.md, bug reports, and the web page."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.comparing.report_file import load_reliable
from conformance.explain.groups import shared_causes
from conformance.findings.cause import Harm, Severity
from conformance.findings.verdict import Check, Verdict
from conformance.views import issue
from conformance.views.formatting import Tally, environment, escape_markdown, markdown_table
from conformance.views.web.page import render
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from enum import StrEnum

    from adapters.contract import Departure
    from conformance.explain.groups import SharedCause
    from conformance.findings.cause import Cause
    from conformance.findings.report import Report


REPORTS = Path("reports")
README = Path("README.md")
CAUSES = REPORTS / "causes.md"
INDEX = REPORTS / "README.md"
WEB_PAGE = REPORTS / "index.html"
ISSUES = REPORTS / "issues"

BEGIN = "<!-- what reports/ say; written by `python -m conformance.views.overview` -->\n"
END = "<!-- end of what reports/ say -->\n"

LONGEST = 80
"""Characters of a cause in README.md's table; all of it is in `CAUSES`."""


@dataclass(frozen=True, kw_only=True)
class CommittedReport:
    """A committed report with its path and the name of the framework's version."""

    name: str
    path: Path
    report: Report

    @property
    def framework(self) -> str:
        """The framework's name with that of its engine."""
        return f"{self.report.adapter} {self.report.engine}"

    @property
    def file(self) -> str:
        """The path below the folder of reports."""
        return "/".join(self.path.parts[-2:])

    @property
    def revision(self) -> str:
        """The commit of the framework, or its release."""
        source = self.report.source
        return (source.revision or "")[:10] or f"{source.version} of the package index"

    @property
    def command(self) -> str:
        """The command that makes the report."""
        report, source = self.report, self.report.source
        given = {
            "git": f" --source=CLONE@{source.ref or source.revision}",
            "pypi": f" --source=pypi:{source.version}",
        }.get(source.kind, "")
        depths = {finding.depth for finding in report.findings} - {Depth.STEP}
        depth = "".join(f" --depth={depth}" for depth in depths)
        divisor = report.request.divisor
        modes = "" if divisor is None else f" --modes={Mode.CONSTANT}:{divisor:g}"
        return (
            f"pytest --adapter={report.adapter} --engine={report.engine}{given}"
            f"{depth}{modes} --plan={report.request.plan}"
            f" --report=reports/{self.file}"
        )


def versions(folder: Path) -> list[CommittedReport]:
    """Returns all committed reports, by framework, engine and version."""
    found = [
        CommittedReport(name=_version_name(path, report), path=path, report=report)
        for path in sorted(folder.glob("*/*.json.gz"))
        if path.parent.name != "latest"
        for report in [load_reliable(path)]
    ]
    return sorted(found, key=lambda one: (one.report.adapter, one.report.engine, one.name))


def _version_name(path: Path, report: Report) -> str:
    """Returns what a version is called."""
    return path.name.removesuffix(".json.gz").removesuffix(f"-{report.engine}")


def newest(found: Sequence[CommittedReport]) -> list[CommittedReport]:
    """Returns the newest version of each engine: its main branch, or else its last release."""
    merged = (one for one in found if not one.name.startswith("pull-"))
    latest = {one.framework: one for one in sorted(merged, key=_age)}
    return sorted(latest.values(), key=attrgetter("framework"))


def releases(found: Iterable[CommittedReport]) -> list[CommittedReport]:
    """Returns the versions that are neither a main branch nor a pull request."""
    return [one for one in found if not one.name.startswith(("main-", "pull-"))]


def _age(version: CommittedReport) -> tuple[bool, list[int]]:
    numbers = [int(number) for number in re.findall(r"\d+", version.name)]
    return version.name.startswith("main-"), numbers


def kinds_of_causes(latest: Sequence[CommittedReport]) -> str:
    """Returns README.md's table: each framework with the causes of its newest version, by harm."""
    occurring = {cause.harm for one in latest for cause in one.report.causes}
    kinds = [harm for harm in Harm if harm in occurring]
    rows = (
        [adapter, ", ".join(sorted({one.name for one in versions})), *_by_kind(versions, kinds)]
        for adapter, grouped in groupby(latest, key=attrgetter("report.adapter"))
        for versions in [[*grouped]]
    )
    return _lines(markdown_table(["framework", "version", *kinds], rows))


def _by_kind(versions: Sequence[CommittedReport], kinds: Iterable[Harm]) -> Iterator[str]:
    """Yields the causes of one kind after the other; engines that share one show it once."""
    links: dict[Harm, dict[str, str]] = defaultdict(dict)
    for one in versions:
        for path, cause in _issue_paths(one.report):
            links[cause.harm].setdefault(cause.mistake, _link(path, cause))
        for cause in one.report.causes:
            if cause.harm is Harm.ADVICE:
                links[Harm.ADVICE][cause.mistake] = ""
    for kind in kinds:
        if kind is Harm.ADVICE and links[kind]:
            count = len(links[kind])
            yield f"[{count} form{'' if count == 1 else 's'}]({CAUSES}#advice)"
        else:
            yield "<br>".join(links[kind].values()) or "–"


def _link(path: Path, cause: Cause) -> str:
    without_brackets = re.sub(r"[\[\]]", "", cause.words)  # which would end the link's text
    return f"[{escape_markdown(shorten(without_brackets, LONGEST, placeholder=' …'))}]({path})"


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
    place = f"; look at `{largest.cause.place}`" if largest.cause.place else ""
    counts: dict[str, list[str]] = defaultdict(list)
    for at, group in reversed(shared.groups.items()):
        counts[versions[at].report.engine].append(f"{versions[at].name} ({len(group.findings)})")
    return [
        versions[0].report.adapter,
        shared.cause.effect,
        f"{escape_markdown(shared.cause.statement)}{place}",
        str(largest.cause.impact),
        f"`{largest.smallest.id}`",
        "; ".join(f"{engine}: {', '.join(names)}" for engine, names in counts.items()),
    ]


def wrong_of_seen(
    found: Sequence[CommittedReport], field: str, values: Collection[StrEnum]
) -> list[list[str]]:
    """Returns a row for each report and a column for each value of a field of its findings.

    A cell says how many findings are wrong, of how many.
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
    """Returns the text of each page, that of README.md with its table renewed."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    conventions, convention_header = _conventions(found)
    templates = environment()
    return {
        README: f"{before}{BEGIN}{kinds_of_causes(newest(found))}{END}{after}",
        CAUSES: templates.get_template("causes.md.jinja").render(
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
    """How many options and choices of a version nothing looks at."""
    if report.new_options is None:
        return "not looked up"
    return str(len(report.new_options))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def web_page(found: Sequence[CommittedReport]) -> dict[Path, str]:
    """Returns the web page of the newest versions, which lists what is wrong, refused or advice."""
    reports = [one.report for one in newest(found)]
    return {WEB_PAGE: render(reports, left_out=[Verdict.CONFORMS, Verdict.UNSUPPORTED])}


def issues(found: Sequence[CommittedReport]) -> dict[Path, str]:
    """Returns a bug report for each cause of what is wrong in the newest versions."""
    return {
        path: _lines(issue.as_markdown(one.report, cause))
        for one in newest(found)
        for path, cause in _issue_paths(one.report)
    }


def _issue_paths(report: Report) -> Iterator[tuple[Path, Cause]]:
    """Yields each cause of what is wrong with the path of its bug report.

    Of several causes of one name, the second has a 2 behind its name, and so on.
    """
    taken: Counter[str] = Counter()
    for cause in report.causes:
        if cause.severity is not Severity.ADVICE:
            taken[cause.name] += 1
            number = f"-{taken[cause.name]}" if taken[cause.name] > 1 else ""
            yield ISSUES / f"{report.adapter}-{report.engine}-{cause.name}{number}.md", cause
