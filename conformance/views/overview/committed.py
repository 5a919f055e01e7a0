"""The committed reports, and those of the newest versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.comparing.report_file import load_reliable
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from conformance.findings.report import Report

REPORTS = Path("reports")


@dataclass(frozen=True, kw_only=True)
class CommittedReport:
    """A committed report with its path and the name of the framework's version."""

    name: str
    path: Path
    report: Report

    @property
    def framework(self) -> str:
        """The framework's name, with the name of its engine."""
        return f"{self.report.adapter} {self.report.engine}"

    @property
    def file(self) -> str:
        """The path relative to the folder of reports."""
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
    """Returns the name of a version."""
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
