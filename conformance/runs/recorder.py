"""From a cell to a line in the report, across process borders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from conformance.comparing.journal import Journal
from conformance.findings.errors import HarnessFaultError
from conformance.findings.finding import Finding
from conformance.findings.harness import Consistency
from conformance.findings.report import Header, Provenance, Selection
from conformance.plan.matrix import GeneratedCell, LogCell
from conformance.runs.check import Made, check, check_log
from conformance.runs.environment import environment

if TYPE_CHECKING:
    from adapters.contract import Description
    from conformance.findings.report import Report
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.ranks.pool import RankPool
    from conformance.runs.settings import Settings


class FindingMessage(TypedDict):
    """A finding and what the report's head needs, as plain values that pytest-xdist can carry."""

    header: str
    finding: str
    """Empty where the harness was at fault."""

    framework_seconds: float
    expected: list[tuple[str, float]]
    """Numbers of the reference's, by name, to be compared over the findings of a run."""

    fault: str
    """What was wrong with the harness, if anything was."""


def header(settings: Settings, description: Description) -> Header:
    """What a report says before its findings."""
    source = settings.source
    return Header(
        adapter=settings.adapter.name,
        engine=settings.adapter.engine,
        source=Provenance(**{name: getattr(source, name) for name in Provenance.model_fields}),
        environment=environment(settings.adapter, description, settings.hardware),
        conventions=description.conventions,
        departures=list(description.departures),
        request=settings.plan.request,
    )


def pack(cell: AnyMatrixCell, pool: RankPool, head: Header) -> tuple[Finding, FindingMessage]:
    """Make one finding, where the ranks are."""
    made = _check(cell, pool)
    return made.finding, FindingMessage(
        header=head.model_dump_json(),
        finding=made.finding.model_dump_json(),
        framework_seconds=made.framework_seconds,
        expected=[(name, value) for name, value in made.expected],
        fault="",
    )


def pack_fault(fault: HarnessFaultError, head: Header) -> FindingMessage:
    """Tell the process that writes the report that the run has to stop."""
    return FindingMessage(
        header=head.model_dump_json(),
        finding="",
        framework_seconds=0.0,
        expected=[],
        fault=f"{type(fault).__name__}: {fault}",
    )


def _check(cell: AnyMatrixCell, pool: RankPool) -> Made:
    if isinstance(cell, LogCell):
        return Made(check_log(cell, pool.adapter, pool.source, pool.description))
    if isinstance(cell, GeneratedCell):
        from conformance.runs.generated import check_generated  # hypothesis, which takes its time

        return Made(*check_generated(cell, pool))
    return check(cell, pool)


@dataclass
class Recorder:
    """Gathers findings into the report, where the report is written.

    Raises:
        ReportPathError: it cannot be written.
    """

    settings: Settings
    selected: int = 0
    framework_seconds: float = 0.0
    _consistency: Consistency = field(default_factory=Consistency)
    _journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self._journal = Journal(self.settings.report)

    def record(self, finding_message: FindingMessage) -> Finding:
        """Take in a finding message, perhaps from another process; returns its finding.

        Raises:
            HarnessFaultError: no verdict of the run can be relied on.
        """
        self._journal.begin(Header.model_validate_json(finding_message["header"]))
        if finding_message["fault"]:
            raise HarnessFaultError(finding_message["fault"])
        finding = Finding.model_validate_json(finding_message["finding"])
        self._consistency.require(finding.case, finding.id, finding_message["expected"])
        self._journal.add(finding)
        self.framework_seconds += finding_message["framework_seconds"]
        return finding

    def close(self) -> None:
        """Let go of the report's path, however the run came to its end."""
        self._journal.close()

    def finish(self) -> Report | None:
        """Write the report of all that was recorded; None if nothing was."""
        deselected = len(self.settings.plan.cells()) - self.selected
        return self._journal.finish(
            Selection(selected=self.selected, deselected=max(deselected, 0))
        )
