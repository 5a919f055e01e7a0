"""From a cell to a line in the report, across process borders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from adapters.contract import Place
from conformance.cells import GeneratedCell, LogCell
from conformance.check import check, check_log
from conformance.environment import environment
from conformance.journal import Journal
from conformance.report import Finding, Header, Provenance, Selection

if TYPE_CHECKING:
    from adapters.contract import Description
    from conformance.cells import AnyCell
    from conformance.ranks import RankPool
    from conformance.report import Report
    from conformance.settings import Settings


class Parcel(TypedDict):
    """A finding and what the report's head needs, as plain values that pytest-xdist can carry."""

    header: str
    finding: str
    framework_seconds: float


def header(settings: Settings, description: Description) -> Header:
    """What a report says before its findings."""
    source = settings.source
    return Header(
        adapter=settings.adapter.name,
        engine=settings.adapter.engine,
        source=Provenance(**{name: getattr(source, name) for name in Provenance.model_fields}),
        environment=environment(settings.adapter, description, settings.hardware),
        conventions=description.conventions,
        request=settings.request,
    )


def pack(cell: AnyCell, pool: RankPool, head: Header) -> tuple[Finding, Parcel]:
    """Make one finding, where the ranks are."""
    finding, framework_seconds = _check(cell, pool)
    return finding, Parcel(
        header=head.model_dump_json(),
        finding=finding.model_dump_json(),
        framework_seconds=framework_seconds,
    )


def _check(cell: AnyCell, pool: RankPool) -> tuple[Finding, float]:
    if isinstance(cell, LogCell):
        place = pool.description.places.get(Place.LOG)
        return check_log(cell, pool.adapter, pool.source, place), 0.0
    if isinstance(cell, GeneratedCell):
        from conformance.generated import check_generated  # hypothesis, which takes its time

        return check_generated(cell, pool)
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
    _journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self._journal = Journal(self.settings.report)

    def record(self, parcel: Parcel) -> Finding:
        """Take in a parcel, perhaps from another process; returns its finding."""
        self._journal.begin(Header.model_validate_json(parcel["header"]))
        finding = Finding.model_validate_json(parcel["finding"])
        self._journal.add(finding)
        self.framework_seconds += parcel["framework_seconds"]
        return finding

    def close(self) -> None:
        """Let go of the report's path, however the run came to its end."""
        self._journal.close()

    def finish(self) -> Report | None:
        """Write the report of all that was recorded; None if nothing was."""
        deselected = len(self.settings.cells()) - self.selected
        return self._journal.finish(
            Selection(selected=self.selected, deselected=max(deselected, 0))
        )
