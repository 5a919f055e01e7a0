"""Carries findings to the process that writes the report, and gathers them there.

Each process that makes findings sends the report's header with its first finding.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, TypedDict

from conformance.comparing.journal import Journal
from conformance.findings.cause import Cause, CauseTrace, Clues
from conformance.findings.errors import HarnessFaultError, InconsistentExpectationError
from conformance.findings.finding import Finding
from conformance.findings.report import Environment, Header, Provenance, Selection, sources
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from adapters.contract import Adapter, Description
    from conformance.findings.report import Report
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.ranks.hardware import Hardware
    from conformance.runs.settings import Settings

DECLINED = (Verdict.UNSUPPORTED, Verdict.REFUSED)
"""Verdicts on jobs that did not run and therefore show nothing."""


class FindingMessage(TypedDict):
    """A finding as plain values that pytest-xdist can carry from process to process."""

    header: str
    """The report's header, in the first message of each process; empty in later messages."""

    finding: str
    """The finding as JSON; empty if the harness was at fault."""

    framework_seconds: float
    """Seconds that the slowest ranks spent in the framework's own code since the last message."""

    expected: list[tuple[str, float]]
    """The reference's numbers by name, which are compared over all findings of a run."""

    clues: str
    """The clues to known mistakes as JSON; empty if there are none."""

    fault: str
    """The fault of the harness; empty if there was none."""


def header(settings: Settings, description: Description) -> Header:
    """The header of a run's report."""
    adapter, source = settings.adapter, settings.source
    return Header(
        adapter=adapter.name,
        adapter_class=settings.adapter_class,
        engine=adapter.engine,
        source=Provenance(**{name: getattr(source, name) for name in Provenance.model_fields}),
        environment=_environment(adapter, description, settings.hardware),
        conventions=description.conventions,
        documented=sources(description.declared),
        departures=list(description.departures),
        versions=adapter.versions,
        chosen_by=dict(description.chosen_by),
        logged_as={str(metric): name for metric, name in description.logged_as.items()},
        new_options=list(description.new_options),
        request=settings.plan.request,
    )


def _environment(adapter: Adapter, description: Description, hardware: Hardware) -> Environment:
    """Versions and machine kind, without a name of the machine, its user or its folders."""
    versions = {name: installed_version(name) for name in adapter.dependencies}
    return Environment(
        python=platform.python_version(),
        torch=version("torch"),
        backend=hardware.backend,
        device=hardware.device,
        dtype=hardware.dtype,
        platform=f"{platform.system()} {platform.machine()}",
        dependencies={name: found for name, found in versions.items() if found},
        stubs=list(description.stubs),
    )


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def message(
    cell: AnyMatrixCell, judgement: Judgement, header: str, framework_seconds: float
) -> FindingMessage:
    """Packs the finding of a cell, in the process that drives the ranks."""
    clues = judgement.clues
    return FindingMessage(
        header=header,
        finding=judgement.finding(cell.id, cell.depth).model_dump_json(),
        framework_seconds=framework_seconds,
        expected=[(name, value) for name, value in judgement.expected],
        clues="" if clues is None else clues.model_dump_json(exclude_defaults=True),
        fault="",
    )


def fault_message(fault: HarnessFaultError, header: str) -> FindingMessage:
    """Tells the process that writes the report that the run has to stop."""
    return FindingMessage(
        header=header,
        finding="",
        framework_seconds=0.0,
        expected=[],
        clues="",
        fault=f"{type(fault).__name__}: {fault}",
    )


@dataclass
class Consistency:
    """The expected numbers of a run, by case and name, each with the first finding that has it.

    Equally named numbers cannot depend on how a step was run. If two of them differ, at least one
    is wrong, and no verdict is reliable.
    """

    _known: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    def require(self, case: str, finding: str, numbers: Iterable[tuple[str, float]]) -> None:
        """Compare the expected numbers of a finding with those of the findings before it.

        Raises:
            InconsistentExpectationError: a number differs from an earlier one of the same name.
        """
        for name, value in numbers:
            before, first = self._known.setdefault((case, name), (value, finding))
            if before != value:
                raise InconsistentExpectationError(
                    f"{name} of case {case} is expected to be {before!r} by {first} and {value!r}"
                    f" by {finding}, which cannot differ: the adapter misreports how steps were"
                    " cut, or the reference is wrong; no verdict of this run can be relied on"
                )


@dataclass
class FindingRecorder:
    """Gathers findings into the report, in the process that writes the report.

    Raises:
        ReportPathError: the report cannot be written.
    """

    settings: Settings
    selected: int = 0
    framework_seconds: float = 0.0
    fault: str | None = None
    """The first fault of the harness: no verdict of the run can be relied on."""

    traces: dict[str, CauseTrace] = field(default_factory=dict)
    """The traces of causes, by the id of each cause's smallest reproduction."""

    ran: dict[str, bool] = field(default_factory=dict)
    """Whether the job of each finding ran, by id; True also if the whole version is not driven,
    as then no substitute would run either."""

    journal: Journal = field(init=False)
    """The file that holds the findings until the report is written."""

    _consistency: Consistency = field(default_factory=Consistency)

    def __post_init__(self) -> None:
        self.journal = Journal(self.settings.report)

    def record(self, finding_message: FindingMessage) -> Finding:
        """Records the finding of a message, perhaps from another process, and returns the finding.

        Raises:
            HarnessFaultError: no verdict of the run can be relied on.
        """
        try:
            return self._recorded(finding_message)
        except HarnessFaultError as fault:
            self.fault = self.fault or str(fault)
            raise

    def _recorded(self, finding_message: FindingMessage) -> Finding:
        if finding_message["header"] and not self.journal.begun:
            self.journal.begin(Header.model_validate_json(finding_message["header"]))
        if finding_message["fault"]:
            raise HarnessFaultError(finding_message["fault"])
        finding = Finding.model_validate_json(finding_message["finding"])
        self._consistency.require(finding.case, finding.id, finding_message["expected"])
        clues = finding_message["clues"]
        self.journal.add(finding, Clues.model_validate_json(clues) if clues else None)
        self.ran[finding.id] = finding.verdict not in DECLINED
        self.framework_seconds += finding_message["framework_seconds"]
        return finding

    @property
    def planned(self) -> Report | None:
        """The report before it is written; None unless every finding of the plan is recorded."""
        return self.journal.report(self._selection) if self.is_whole else None

    @property
    def is_whole(self) -> bool:
        """Whether every finding of the plan is recorded."""
        selection = self._selection
        is_complete = len(self.ran) == selection.selected and not selection.deselected
        return is_complete and self.fault is None

    def record_more(self, finding_message: FindingMessage) -> Finding:
        """Records the finding of a cell that is not in the plan, and returns the finding.

        Raises:
            HarnessFaultError: no verdict of the run can be relied on.
        """
        self.selected += 1
        return self.record(finding_message)

    def causes(self) -> list[Cause]:
        """The causes of the findings recorded so far."""
        report = self.journal.report(self._selection)
        return [] if report is None else report.causes

    def finish(self) -> Report | None:
        """Writes the report of all recorded findings; returns None if nothing was recorded."""
        watched = self.settings.gate.watched
        return self.journal.finish(self._selection, watched, self.fault, self.traces)

    @cached_property
    def _in_plan(self) -> int:
        return len(self.settings.plan.cells())

    @property
    def _selection(self) -> Selection:
        deselected = self._in_plan - self.selected
        return Selection(selected=self.selected, deselected=max(deselected, 0))
