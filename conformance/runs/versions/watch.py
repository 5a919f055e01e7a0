"""Runs every framework's main branch and newest release, each on two layouts in its own process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from conformance.findings.errors import ConformanceError
from conformance.findings.verdict import Check
from conformance.runs import registry
from conformance.runs.versions import history
from conformance.runs.versions.history import CommitRuns, Row
from conformance.sources.source import Commit, SourceError, find_commit, newest_release
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from adapters.contract import Adapter, Layout
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

CHECKS = (Check.WEIGHTS, Check.METRIC)

LAYOUTS = 2
"""The number of layouts of a run; with more, all frameworks together take over 15 minutes."""

MOST_RANKS = 4


class Newest(StrEnum):
    """The choice of a framework's version: its main branch or its newest release."""

    MAIN = "main"
    RELEASE = "release"


@dataclass(frozen=True, kw_only=True)
class Target:
    """An engine of a framework, and the version to run; ``repository`` is None without a clone."""

    adapter: Adapter
    newest: Newest
    repository: Path | None

    def __str__(self) -> str:
        return f"{self.framework}, {self.newest}"

    @property
    def framework(self) -> str:
        """The names of the framework and of its engine."""
        return f"{self.adapter.name} {self.adapter.engine}"

    def commit(self) -> Commit:
        """The current commit of the version.

        Raises:
            ConformanceError: there is no such version.
        """
        is_published = self.adapter.distribution is not None
        if self.newest is Newest.RELEASE and (self.repository or is_published):
            return newest_release(self.adapter, self.repository)
        if self.repository is None:
            raise SourceError(f"there is no clone of {self.adapter.name}")
        return replace(find_commit(self.repository, "HEAD"), ref=Newest.MAIN)


def targets(names: Sequence[str], sources: Path) -> list[Target]:
    """The targets of the named adapters, by default of all adapters.

    ``sources`` is a folder of clones; a clone's name is its adapter's, in upper or lower case.

    Raises:
        SourceError: there is no such folder.
        AdapterError: an adapter is unknown or cannot be imported.
    """
    if not sources.is_dir():
        raise SourceError(f"{sources} is no folder", "give one of clones")
    clones = {path.name.lower(): path.resolve() for path in sources.iterdir()}
    classes = [registry.adapter_classes(name) for name in names or registry.known()]
    return [
        Target(adapter=engine(), newest=newest, repository=clones.get(engine.name.lower()))
        for engines in classes
        for engine in engines.values()
        if engine.package is not None
        for newest in Newest
    ]


def run(target: Target, reported: Report | None, reports: Path | None, seconds: float) -> Row:
    """Run a version on the two layouts with the most findings in a report, for ``seconds``."""
    try:
        commit = target.commit()
    except ConformanceError as error:
        nothing = Commit(ref=target.newest, revision="", date="", subject="")
        return Row(commit=nothing, problem=str(error))
    selection = CommitRuns(
        adapter=target.adapter.name,
        repository=target.repository,
        engine=target.adapter.engine,
        options=(
            f"--engine={target.adapter.engine}",
            f"--checks={','.join(CHECKS)}",
            "--no-trace",  # the table shows no source lines
            *_selection(target.adapter, reported),
        ),
    )
    [row] = history.run(selection, [commit], reports, seconds)
    return row


def _selection(adapter: Adapter, reported: Report | None) -> Iterator[str]:
    """Yields the options that choose the layouts, and the findings that a report has on them.

    Of layouts with equally many findings, the largest are chosen. If the report has no findings on
    the layouts, everything is run.
    """
    fitting = [layout for layout in adapter.layouts() if layout.world_size <= MOST_RANKS]
    by_size = sorted(fitting, key=lambda layout: layout.world_size, reverse=True)
    findings: dict[Layout, list[Finding]] = {layout: [] for layout in by_size}
    for finding in reported.findings if reported else ():
        if finding.check in CHECKS and finding.layout in findings:
            findings[finding.layout].append(finding)
    chosen = sorted(findings, key=lambda layout: len(findings[layout]), reverse=True)[:LAYOUTS]
    yield from (f"--layout={layout}" for layout in chosen)
    known = [finding for layout in chosen for finding in findings[layout]]
    if reported and known:
        yield f"--depth={known[0].depth}"
        yield from ("-k", " or ".join(f"[{finding.id}]" for finding in known))
        if reported.request.divisor is not None:
            yield f"--modes={Mode.CONSTANT}:{reported.request.divisor!r}"
