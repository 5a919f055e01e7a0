"""The data of a page of reports, compact enough to send the page by mail.

The fields of findings have few distinct values, so each field is a column: its distinct values, and
for every finding the index of its value.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from conformance.corpus.cases import ALL_CASES
from conformance.findings.badness import LEGEND, off_by
from conformance.findings.cause import Harm
from conformance.findings.verdict import WRONG, Check, Verdict
from conformance.runs.options import PLACEHOLDERS, command

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Diagnosis, Finding, Picture
    from conformance.findings.report import Provenance, Report
    from reference.aggregation import Mode

    Indices = dict[Hashable, int]
    """Distinct values, each with its index in order of occurrence."""

DIGITS = 3
"""Significant digits of errors and tolerances."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A report, with the page's names for its framework and version."""

    framework: str
    name: str
    run: int
    """The index of the report on the page."""

    report: Report

    @cached_property
    def cells(self) -> dict[tuple[Check, Mode], list[Finding]]:
        """The findings of each check and mode."""
        cells: dict[tuple[Check, Mode], list[Finding]] = defaultdict(list)
        for finding in self.report.findings:
            cells[finding.check, finding.mode].append(finding)
        return cells

    @cached_property
    def causes(self) -> dict[str, list[Cause]]:
        """The causes of each finding that has any, by its id."""
        causes: dict[str, list[Cause]] = defaultdict(list)
        for cause in self.report.causes:
            for name in cause.findings:
                causes[name].append(cause)
        return causes

    @property
    def stopped(self) -> str:
        """The progress of a stopped run; empty for complete runs."""
        report = self.report
        found = f"{len(report.findings)} of {report.selection.selected} findings"
        return "" if report.complete else found


def name_versions(reports: Iterable[Report]) -> list[Version]:
    """Names reports; several reports of the same version are numbered."""
    versions: list[Version] = []
    taken: Counter[tuple[str, str]] = Counter()
    for run, report in enumerate(reports):
        framework, name = f"{report.adapter} {report.engine}", _version_name(report.source)
        taken[framework, name] += 1
        again = taken[framework, name]
        name = f"{name} ({again})" if again > 1 else name
        versions.append(Version(framework=framework, name=name, run=run, report=report))
    return versions


def _version_name(source: Provenance) -> str:
    """Returns the usual name of a version: its release, or its ref and commit."""
    ref = (source.ref or "").removeprefix("refs/").removesuffix("/head")
    revision = (source.revision or "")[:9]
    names = [source.version, ref, "" if ref and revision.startswith(ref) else revision]
    return " ".join(name for name in names if name) + (" + changes" if source.dirty else "")


def document(versions: Sequence[Version], left_out: Collection[Verdict] = ()) -> dict[str, Any]:
    """Returns all data that the script of the page reads; findings with the worst causes first.

    Findings with a verdict in ``left_out`` are only counted.
    """
    everything = [(one.run, finding) for one in versions for finding in one.report.findings]
    found = sorted(
        (pair for pair in everything if pair[1].verdict not in left_out),
        key=lambda pair: _severity(versions[pair[0]].causes.get(pair[1].id, [])),
    )
    findings = [finding for _, finding in found]
    runs: Indices = {}
    samples: Indices = {}
    fields = ("check", "subject", "mode", "case", "depth", "verdict", "place", "message")
    columns = {
        "framework": _column(versions[run].framework for run, _ in found),
        "version": _column(versions[run].name for run, _ in found),
        "run": _column(run for run, _ in found),
        "causes": _column(
            tuple(cause.statement for cause in versions[run].causes.get(finding.id, ()))
            for run, finding in found
        ),
        "trace": _column(_trace(versions[run].causes.get(one.id, ())) for run, one in found),
        "layout": _column(str(finding.layout) for finding in findings),
        "error": _column(_rounded(finding.error) for finding in findings),
        "tolerance": _column(_rounded(finding.tolerance) for finding in findings),
        "off_by": _column(None if f.agreement is None else off_by(f) for f in findings),
        "diagnosis": _column(_diagnosis(finding.diagnosis) for finding in findings),
        "logged": _column(
            one and (_number(one.expected), _number(one.reported))
            for one in (finding.logged for finding in findings)
        ),
        "picture": _column(_picture(finding.picture, runs, samples) for finding in findings),
        "command": _column(_command(versions[run].report, finding) for run, finding in found),
    } | {name: _column(getattr(finding, name) for finding in findings) for name in fields}
    occurring = columns["case"]["values"]
    return {
        "count": len(found),
        "total": len(everything),
        "columns": columns,
        # Stored by column, since the values of a column are alike and so compress better.
        "samples": [*zip(*samples, strict=True)],
        "runs": [*zip(*runs, strict=True)],
        "reports": [_about(one) for one in versions],
        "cases": {case.name: case.catches for case in ALL_CASES if case.name in occurring},
        "legend": LEGEND,
        "wrong": [*WRONG],
        "placeholders": PLACEHOLDERS,
    }


def _severity(causes: Sequence[Cause]) -> int:
    """Returns a sort key: findings with the worst causes first, those without any last."""
    return min((cause.harm.rank for cause in causes), default=len(Harm))


def _about(version: Version) -> dict[str, list[tuple[str, str]]]:
    """Returns the source of the code, and the settings and environment of a run, in sections."""
    report = version.report
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
                "stopped": f"at {version.stopped}" if version.stopped else None,
            }
        ),
        "environment": _said(
            {
                "device": f"{environment.device}, {environment.backend}, {environment.platform}",
                "parameters": environment.dtype,
                "python": environment.python,
                "torch": environment.torch,
                **environment.dependencies,
                "stub packages": ", ".join(environment.stubs),
                **_departures(report),
                **report.answers,
            }
        ),
    }


def _departures(report: Report) -> dict[str, str]:
    """Returns the differences from a user's run, by kind."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for one in report.departures:
        kinds[one.kind.replace("_", " ")].append(f"{one.what} ({one.why})")
    return {kind: "; ".join(words) for kind, words in kinds.items()}


def _said(named: dict[str, str | None]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in named.items() if value]


def _index(value: Hashable, indices: Indices) -> int:
    """Returns the index of a value, which is added if it is new."""
    return indices.setdefault(value, len(indices))


def _column(values: Iterable[Hashable]) -> dict[str, list[Any]]:
    indices: Indices = {}
    numbers = [_index(value, indices) for value in values]
    return {"values": [*indices], "numbers": numbers}


def _rounded(value: float | None) -> float | str | None:
    return _number(value and float(f"{value:.{DIGITS}g}"))


def _number(value: float | None) -> float | str | None:
    """Returns a number as short JSON: whole numbers without a point, infinities as strings."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    return int(value) if value == int(value) else value


def _diagnosis(diagnosis: Diagnosis | None) -> Hashable:
    if diagnosis is None:
        return None
    numbers = tuple((name, _number(value)) for name, value in diagnosis.numbers.items())
    return diagnosis.name, diagnosis.first_explanation, numbers, tuple(diagnosis.also)


def _trace(causes: Sequence[Cause]) -> Hashable:
    """Returns the suspects and the factors of the first traced cause."""
    for cause in causes:
        if cause.suspects:
            suspects = ((one.place, one.why) for one in cause.suspects)
            chain = ((_number(factor.value), factor.place) for factor in cause.chain)
            return tuple(suspects), tuple(chain)
    return None


def _picture(picture: Picture | None, runs: Indices, samples: Indices) -> Hashable:
    """Returns a picture's step, size and indices of samples; a sample has the indices of its runs.

    Indices are stored as differences (`_steps`).
    """
    if picture is None:
        return None
    drawn = []
    for one in picture.samples:
        drawn_runs = _steps(_index(tuple(map(_number, run)), runs) for run in one.runs)
        drawn.append(_index((one.sample, one.group, one.tokens, drawn_runs), samples))
    return picture.step, picture.samples_of_step, _steps(drawn)


def _steps(numbers: Iterable[int]) -> tuple[int, ...]:
    """Returns the differences between numbers, the first from 0: most are 1, and compress well."""
    return tuple(now - before for before, now in pairwise(chain([0], numbers)))


def _command(report: Report, finding: Finding) -> Hashable:
    """Returns the parts of the command before and after the id, which many findings share.

    If quoting for the shell has changed the id, it returns the whole command and None.
    """
    before, found, after = command(report, finding).partition(finding.id)
    return before, after if found else None
