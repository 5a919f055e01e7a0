"""The audit has a row with evidence for every accusation and advice in the newest reports."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from conformance.comparing.report_file import load
from conformance.findings.finding import Finding
from conformance.findings.report import Report
from conformance.findings.sanitize import first_line, numberless
from conformance.findings.verdict import WRONG, Verdict

REPORTS = Path(__file__).parents[1] / "reports"

OLDER = (
    "openrlhf/v0.10.4",
    "openrlhf/v0.11.1",
    "slime/v0.3.1",
    "trl/v1.9.2",
    "trl/v1.10.0",
    "trl/v1.14.2",
    "verl/v0.7.1",
    "verl/v0.8.0",
    "verl/v0.9.0",
)
"""The reports on releases that a newer release of the same framework has replaced."""

NEWEST = sorted(
    {f"{path.parent.name}/{path.name.removesuffix('.json.gz')}" for path in REPORTS.glob("*/*.gz")}
    - {*OLDER}
)
"""Reports whose verdicts have been audited one by one."""

CLASSES = {"A": WRONG, "B": (Verdict.ADVICE,)}
"""The verdicts of the findings that rows of each class are about."""


@dataclass(frozen=True)
class Kind:
    """A kind of findings of an engine, which one row is about."""

    engine: str
    slug: str
    check: str
    mistake: str
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """The findings that a row of the audit is about."""

    engines: frozenset[str]
    checks: frozenset[str]
    mistakes: frozenset[str]
    verdicts: tuple[Verdict, ...]
    lines: frozenset[tuple[str, int]]
    """The lines that the row's evidence names, each with the name of its file."""

    def covers(self, kind: Kind) -> bool:
        """Whether the row is about findings like these."""
        return (
            kind.engine in self.engines
            and bool(self.checks & {kind.slug, kind.check})
            and kind.mistake in self.mistakes
            and kind.verdict in self.verdicts
        )


def mistake(finding: Finding) -> str:
    if finding.diagnosis is not None:
        return finding.diagnosis.name
    return f"crash: {numberless(first_line(finding.message))}"


def rows() -> list[Row]:
    lines = (REPORTS / "audit.md").read_text().splitlines()
    table = [line.strip("|").split(" | ") for line in lines if re.match(r"\| (\w+ \w+)", line)]
    return [
        Row(
            engines=frozenset(engines.strip().split(", ")),
            checks=frozenset(checks.split(", ")),
            mistakes=frozenset(re.findall(r"`([^`]+)`", mistakes)),
            verdicts=CLASSES[kind.strip()],
            lines=frozenset(named_lines(evidence)),
        )
        for engines, checks, mistakes, kind, evidence, *_ in table
        if kind.strip() != "class"
    ]


def named_lines(evidence: str) -> Iterator[tuple[str, int]]:
    """Yield lines such as `` `worker.py:801` ``, and `` `:806` `` in the file named before it."""
    file = ""
    for named, line in re.findall(r"`(?:\w+ )?([\w./]*?\.py)?(?::(\d+))?`", evidence):
        file = named.rpartition("/")[2] or file
        if line:
            yield file, int(line)


@cache  # as three tests read reports, of half a megabyte each
def audited(name: str) -> frozenset[Kind]:
    """The kinds of findings of a report."""
    report = load(REPORTS / f"{name}.json.gz")
    return frozenset(kind(finding, report) for finding in report.findings)


def kind(finding: Finding, report: Report) -> Kind:
    """The kind of a finding of a report."""
    return Kind(
        engine=f"{report.adapter} {report.engine}",
        slug=finding.identity.slug,
        check=str(finding.check),
        mistake=mistake(finding),
        verdict=finding.verdict,
    )


def of_all() -> frozenset[Kind]:
    return frozenset().union(*map(audited, NEWEST))


@pytest.mark.parametrize("name", NEWEST)
def test_every_accusation_and_piece_of_advice_has_a_row(name: str) -> None:
    known = rows()
    without = {
        (kind.slug, kind.mistake, str(kind.verdict))
        for kind in audited(name)
        if kind.verdict in (*WRONG, Verdict.ADVICE)
        if not any(row.covers(kind) for row in known)
    }

    assert not without


def test_every_row_is_of_something_that_a_report_has() -> None:
    kinds = of_all()
    engines = {kind.engine for kind in kinds}

    assert not [row for row in rows() if row.engines <= engines if not any(map(row.covers, kinds))]


def test_every_mistake_of_a_row_is_found_somewhere() -> None:
    """A name that no report has any more must be removed from its row."""
    kinds = of_all()
    found, engines = {kind.mistake for kind in kinds}, {kind.engine for kind in kinds}

    assert not {name for row in rows() if row.engines <= engines for name in row.mistakes - found}
