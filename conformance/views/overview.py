"""Committed reports side by side: what conforms where, and what is wrong.

``python -m conformance.views.overview`` writes the table of reports into README.md, between
its marks, the list of findings to reports/findings.md, and reports/README.md; all are made of the
reports alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.report_file import load
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import JUDGED, WRONG, Check, Verdict
from conformance.views.markdown import row
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Departure
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

REPORTS = Path("reports")
README = Path("README.md")
FINDINGS = REPORTS / "findings.md"
INDEX = REPORTS / "README.md"

BEGIN = "<!-- what reports/ say; written by `python -m conformance.views.overview` -->\n"
END = "<!-- end of what reports/ say -->\n"

HEAD = """\
# Findings

What the reports in this folder say is wrong, a line for each mistake of a framework's engine and
check, with the versions that have it and one finding as an example. Written by
`python -m conformance.views.overview`. A *crash* has no diagnosis: its last line is quoted. Where the
mistake determines a place in the framework's code, it stands behind the words.
How each kind was held against the framework's own source and documents is in
[`audit.md`](audit.md).

| framework | engine | check | modes | mistake | for example | versions |
|---|---|---|---|---|---|---|
"""

ADVICE_HEAD = """
## Advice

What breaks no promise of the framework's and is counted nowhere as wrong: rules that another
framework states and this one does not, and documented conventions that make a term depend on how a
step is cut.

| framework | engine | check | modes | advice | for example | versions |
|---|---|---|---|---|---|---|
"""

INDEX_HEAD = """\
# Reports

What the harness wrote for released versions and for pull requests, one folder per adapter, never
edited by hand. A file is named after the version, with the commit where a name can move, and with
the engine where it is not the adapter's default; its `source` has the exact revision, its
`environment` the versions of what it ran with. What a run writes of its own accord goes to
`reports/latest/`, which git ignores. This page is written by
`python -m conformance.views.overview`.

[`findings.md`](findings.md) has every mistake by name; [`history.md`](history.md) is a table of
fixes, each run before and after; [`mutants.md`](mutants.md) and [`mutation.md`](mutation.md) are
about this project's own tests.

`rl-loss-conformance show REPORT` shows one of them, `rl-loss-conformance diff OLD NEW` what changed
between two, of one framework or of two.

## Frameworks side by side

How many findings are wrong, of how many, over all checks; `–` where a framework has no such mode.
"""

CONVENTIONS_HEAD = """
## Conventions

What the modes leave open, as each framework documents it. A difference between columns is one
between frameworks, and no mistake.
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


@dataclass(frozen=True, kw_only=True)
class Version:
    """A report, where it is, and what its version is called."""

    name: str
    path: Path
    report: Report

    @property
    def file(self) -> str:
        """Below the folder of reports."""
        return "/".join(self.path.parts[-2:])

    @property
    def command(self) -> str:
        """What writes the report."""
        report, source = self.report, self.report.source
        given = {
            "git": f" --source=CLONE@{source.ref or source.revision}",
            "pypi": f" --source=pypi:{source.version}",
        }.get(source.kind, "")
        return (
            f"pytest --adapter={report.adapter} --engine={report.engine}{given}"
            f" --report=reports/{self.file}"
        )


@dataclass(frozen=True, order=True)
class Mistake:
    """What findings of one kind have in common."""

    adapter: str
    engine: str
    check: Check
    name: str


def versions(folder: Path) -> list[Version]:
    """All committed reports, by framework, engine and version."""
    found = [
        Version(name=_name(path, report), path=path, report=report)
        for path in sorted(folder.glob("*/*.json.gz"))
        if path.parent.name != "latest"
        for report in [load(path)]
    ]
    return sorted(found, key=lambda one: (one.report.adapter, one.report.engine, one.name))


def _name(path: Path, report: Report) -> str:
    """What a version is called."""
    return path.name.removesuffix(".json.gz").removesuffix(f"-{report.engine}")


def table(found: Sequence[Version]) -> Iterator[str]:
    """A line for each report, a column for each check: how many findings are wrong, of how many."""
    yield f"| framework | engine | version | {' | '.join(Check)} |"
    yield f"|---|---|---|{'---|' * len(Check)}"
    for one in found:
        cells = [_cell([f for f in one.report.findings if f.check is check]) for check in Check]
        report = one.report
        yield f"| {report.adapter} | {report.engine} | {one.name} | {' | '.join(cells)} |"


def _cell(findings: Sequence[Finding]) -> str:
    seen = [finding for finding in findings if finding.verdict in JUDGED]
    wrong = sum(finding.verdict in WRONG for finding in seen)
    if not seen:
        return "–"
    return f"**{wrong}** of {len(seen)}" if wrong else f"ok ({len(seen)})"


def mistakes(found: Sequence[Version], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line for each mistake, or piece of advice, of findings with these verdicts."""
    grouped: dict[Mistake, list[tuple[str, Finding]]] = defaultdict(list)
    for one in found:
        for finding in one.report.findings:
            if finding.verdict in verdicts:
                grouped[_mistake(one.report, finding)].append((one.name, finding))
    for mistake in sorted(grouped):
        yield _line(mistake, grouped[mistake])


def _mistake(report: Report, finding: Finding) -> Mistake:
    name = finding.diagnosis.name if finding.diagnosis else f"crash: {last_line(finding.message)}"
    return Mistake(report.adapter, report.engine, finding.check, name)


def _line(mistake: Mistake, found: Sequence[tuple[str, Finding]]) -> str:
    subjects = list(dict.fromkeys(finding.subject for _, finding in found if finding.subject))
    modes = [mode for mode in Mode if any(finding.mode is mode for _, finding in found)]
    counts = Counter(version for version, _ in found)
    example = min((finding for _, finding in found), key=lambda one: (len(_words(one)), one.id))
    place = f"; look at `{example.place}`" if example.place else ""
    cells = (
        mistake.adapter,
        mistake.engine,
        f"{mistake.check}{f': {_list(subjects)}' if subjects else ''}",
        _list(modes),
        f"`{mistake.name}`",
        f"`{example.id}`: {_words(example)}{place}",
        _list(f"{version} ({count})" for version, count in counts.items()),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(finding: Finding) -> str:
    return finding.diagnosis.explanation if finding.diagnosis else last_line(finding.message)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def modes(found: Sequence[Version]) -> Iterator[str]:
    """A line for each report, a column for each mode: how many findings are wrong, of how many."""
    yield f"| framework | engine | version | {' | '.join(Mode)} |"
    yield f"|---|---|---|{'---|' * len(Mode)}"
    for one in found:
        report = one.report
        cells = [_cell([f for f in report.findings if f.mode is mode]) for mode in Mode]
        yield f"| {report.adapter} | {report.engine} | {one.name} | {' | '.join(cells)} |"


def conventions(found: Sequence[Version]) -> Iterator[str]:
    """A line for each convention; a framework's versions that agree share a column."""
    columns: dict[tuple[str, Conventions], list[str]] = defaultdict(list)
    for one in found:
        framework = f"{one.report.adapter} {one.report.engine}"
        columns[framework, one.report.conventions].append(one.name)
    heads = [f"{framework}: {_list(names)}" for (framework, _), names in columns.items()]
    yield f"| convention | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for name in [field.name for field in fields(Conventions)]:
        choices = [str(getattr(declared, name)) for _, declared in columns]
        yield f"| `{name}` | {' | '.join(choices)} |"


def departures(found: Sequence[Version]) -> Iterator[str]:
    """A line for each departure of an engine, with the versions that have it."""
    versions: dict[tuple[str, Departure], list[str]] = defaultdict(list)
    for one in found:
        for departure in one.report.departures:
            engine = f"{one.report.adapter} {one.report.engine}"
            versions[engine, departure].append(one.name)
    yield "| engine | kind | what | why no verdict depends on it | versions |"
    yield "|---|---|---|---|---|"
    for (engine, departure), names in versions.items():
        kind = departure.kind.replace("_", " ")
        yield row([engine, kind, departure.what, departure.why, _list(names)])


def files(found: Sequence[Version]) -> Iterator[str]:
    """A line for each report: its revision, and the command."""
    yield "| file | revision | command |"
    yield "|---|---|---|"
    for one in found:
        source = one.report.source
        revision = (source.revision or "")[:10] or f"{source.version} of the package index"
        yield f"| [`{one.file}`]({one.file}) | {revision} | `{one.command}` |"


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Text of what is written."""

    readme: str
    findings: str
    index: str


def pages(found: Sequence[Version], readme: str) -> Pages:
    """README.md with its table anew, reports/findings.md and reports/README.md."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return Pages(
        readme=f"{before}{BEGIN}{_lines(table(found))}{END}{after}",
        findings=f"{HEAD}{_lines(mistakes(found, WRONG))}"
        f"{ADVICE_HEAD}{_lines(mistakes(found, (Verdict.ADVICE,)))}",
        index=f"{INDEX_HEAD}\n{_lines(modes(found))}"
        f"{CONVENTIONS_HEAD}\n{_lines(conventions(found))}"
        f"{DEPARTURES_HEAD}\n{_lines(departures(found))}"
        f"{FILES_HEAD}\n{_lines(files(found))}",
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    written = pages(versions(REPORTS), README.read_text(encoding="utf-8"))
    README.write_text(written.readme, encoding="utf-8")
    FINDINGS.write_text(written.findings, encoding="utf-8")
    INDEX.write_text(written.index, encoding="utf-8")
