"""What a page knows of its reports, as data for its script: small enough to send by mail.

Findings say the same few things over and over, so that each of their fields is a column: its
distinct values, and for every finding the number of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conformance.corpus.cases import ALL_CASES
from conformance.findings.badness import LEGEND, off_by
from conformance.runs.reproduce import command

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from conformance.findings.finding import Diagnosis, Finding, Logged, Picture
    from conformance.findings.report import Provenance, Report

    Column = dict[str, list[Any]]

DIGITS = 3
"""Significant ones of errors and tolerances, as `conformance.views.summary` shows them."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A report under the names that the page calls it by."""

    framework: str
    version: str
    report: Report


class Table:
    """Distinct values, each with its number in order of their coming."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        """That of a value, new or known."""
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> list[Any]:
        """All, in the order of their numbers."""
        return list(self._numbers)


def shown(reports: Iterable[Report]) -> list[Shown]:
    """Names for reports; several of one version of a framework are numbered."""
    found: list[Shown] = []
    taken: Counter[tuple[str, str]] = Counter()
    for report in reports:
        framework, version = f"{report.adapter} {report.engine}", version_of(report.source)
        taken[framework, version] += 1
        again = taken[framework, version]
        found.append(
            Shown(
                framework=framework,
                version=f"{version} ({again})" if again > 1 else version,
                report=report,
            )
        )
    return found


def version_of(source: Provenance) -> str:
    """What people call it: its release, its ref and commit, whatever there is."""
    ref = (source.ref or "").removeprefix("refs/").removesuffix("/head")
    revision = (source.revision or "")[:9]
    names = [source.version, ref, "" if ref and revision.startswith(ref) else revision]
    return " ".join(name for name in names if name) + (" + changes" if source.dirty else "")


def document(versions: Sequence[Shown]) -> dict[str, Any]:
    """All that the page's script reads."""
    found = [(run, finding) for run, one in enumerate(versions) for finding in one.report.findings]
    runs, samples = Table(), Table()
    headers = [one.report for one in versions]
    columns = {
        "framework": _column(versions[run].framework for run, _ in found),
        "version": _column(versions[run].version for run, _ in found),
        "run": _column(run for run, _ in found),
        "check": _column(finding.check for _, finding in found),
        "subject": _column(finding.subject for _, finding in found),
        "mode": _column(finding.mode for _, finding in found),
        "case": _column(finding.case for _, finding in found),
        "layout": _column(str(finding.layout) for _, finding in found),
        "depth": _column(finding.depth for _, finding in found),
        "verdict": _column(finding.verdict for _, finding in found),
        "error": _column(_short(finding.error) for _, finding in found),
        "tolerance": _column(_short(finding.tolerance) for _, finding in found),
        "off_by": _column(_off_by(finding) for _, finding in found),
        "diagnosis": _column(_diagnosis(finding.diagnosis) for _, finding in found),
        "place": _column(finding.place for _, finding in found),
        "message": _column(finding.message for _, finding in found),
        "logged": _column(_logged(finding.logged) for _, finding in found),
        "picture": _column(_picture(finding.picture, runs, samples) for _, finding in found),
        "command": _column(_command(headers[run], finding) for run, finding in found),
    }
    return {
        "count": len(found),
        "columns": columns,
        "samples": samples.values,
        "runs": runs.values,
        "reports": [_about(one.report) for one in versions],
        "cases": _cases(columns["case"]["values"]),
        "legend": LEGEND,
    }


def _about(report: Report) -> dict[str, list[tuple[str, str]]]:
    """Which code was run, and what a result may depend on besides."""
    source, environment = report.source, report.environment
    return {
        "source": _said(
            {
                "framework": report.adapter,
                "engine": report.engine,
                "version": source.version,
                "ref": source.ref,
                "revision": source.revision,
                "uncommitted changes": "yes" if source.dirty else None,
                "stopped": None if report.complete else f"at {progress(report)}",
            }
        ),
        "environment": _said(
            {
                "device": f"{environment.device}, {environment.backend}, {environment.platform}",
                "parameters": environment.dtype,
                "python": environment.python,
                "torch": environment.torch,
                **environment.dependencies,
                "stood in for": ", ".join(environment.stubs),
                **_departures(report),
                **{name: str(value) for name, value in asdict(report.conventions).items()},
            }
        ),
    }


def _departures(report: Report) -> dict[str, str]:
    """What the run did otherwise than a user's, by kind."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for one in report.departures:
        kinds[one.kind.replace("_", " ")].append(f"{one.what} ({one.why})")
    return {kind: "; ".join(words) for kind, words in kinds.items()}


def _said(named: dict[str, str | None]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in named.items() if value]


def progress(report: Report) -> str:
    """How much of what was asked for a run has found."""
    return f"{len(report.findings)} of {report.selection.selected} findings"


def _column(values: Iterable[Hashable]) -> Column:
    table = Table()
    numbers = [table.number(value) for value in values]
    return {"values": table.values, "numbers": numbers}


def _short(value: float | None) -> float | str | None:
    return None if value is None else number(float(f"{value:.{DIGITS}g}"))


def number(value: float) -> float | str:
    """As JSON has it: it has no infinities, and whole numbers without a point are shorter."""
    if not math.isfinite(value):
        return str(value)
    return int(value) if value == int(value) else value


def _off_by(finding: Finding) -> str | None:
    """What `LEGEND` explains; older reports have no more than the error."""
    return None if finding.agreement is None else off_by(finding)


def _diagnosis(diagnosis: Diagnosis | None) -> Hashable:
    if diagnosis is None:
        return None
    numbers = tuple((name, number(value)) for name, value in diagnosis.numbers.items())
    return diagnosis.name, diagnosis.explanation, numbers, tuple(diagnosis.also)


def _logged(logged: Logged | None) -> Hashable:
    if logged is None:
        return None
    reported = None if logged.reported is None else number(logged.reported)
    return number(logged.expected), reported


def _picture(picture: Picture | None, runs: Table, samples: Table) -> Hashable:
    """Step, size and numbers of samples; a sample ends with the numbers of its runs."""
    if picture is None:
        return None
    drawn = tuple(
        samples.number(
            (one.sample, one.group, one.tokens, *(runs.number(_run(run)) for run in one.runs))
        )
        for one in picture.samples
    )
    return picture.step, picture.samples_of_step, drawn


def _run(run: Iterable[float | None]) -> Hashable:
    return tuple(None if value is None else number(value) for value in run)


def _command(report: Report, finding: Finding) -> Hashable:
    """What stands before and after the id, which is all that differs between findings.

    After it stands None where the shell's quotes have changed the id: then all stands before.
    """
    before, found, after = command(report, finding).partition(finding.id)
    return before, after if found else None


def _cases(names: Iterable[str]) -> dict[str, str]:
    """What the cases that occur are meant to catch."""
    catches = {case.name: case.catches for case in ALL_CASES}
    return {name: catches[name] for name in names if name in catches}
