"""The check of one adapter: its class, its probe, then everything that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.checker import coverage
from conformance.checker.complaint import NOT_DELIVERED, Complaint, finding_complaint
from conformance.checker.probing import first_complaint, supported
from conformance.findings.errors import HarnessFaultError
from conformance.judging.startup import judge_ignored
from conformance.plan.matrix import StartupCell
from conformance.ranks import processes
from conformance.ranks.hardware import ON_CPU
from conformance.ranks.pool import RankPool
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from conformance.runs.registry import create
from conformance.sources.source import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Adapter, Description, Layout
    from conformance.plan.matrix import MatrixCell


class AdapterCheck:
    """Makes the complaints about one adapter, and keeps the numbers for the summary.

    ``is_relied_on`` says whether the probe is right, so that further complaints may be about the
    framework. ``conforming`` counts findings without a complaint, ``never_shown`` lists declared
    capabilities that no finding shows.

    Raises:
        ConformanceError: there is no such adapter, engine or source.
    """

    def __init__(self, name: str, engine: str | None = None, source: str | None = None) -> None:
        processes.require_room_for_sockets()
        self.adapter: Adapter = create(name, engine)
        self.description: Description | None = None
        self.is_relied_on = False
        self.conforming = 0
        self.never_shown: list[str] = []
        self._source = resolve(self.adapter, source)

    def complaints(self) -> Iterator[Complaint]:
        """Yield the complaints. Findings are judged only if the probe is right.

        Raises:
            StartError: the framework cannot be loaded.
        """
        complaint = _incomplete_class(self.adapter)
        if complaint is not None:
            yield complaint
            return
        layouts = coverage.small_layouts(self.adapter.layouts())
        with self._ranks(layouts) as pool:
            self.description = pool.description
            usable = supported(pool, layouts)
        self.never_shown = [f"layout {one}" for one in layouts if one not in usable]
        with self._ranks(usable) as pool:  # new processes, in which no job has run yet
            complaint = first_complaint(pool, usable)
            self.is_relied_on = complaint is None
            if complaint is None:
                yield from self._finding_complaints(pool, usable)
            else:
                yield complaint

    def _ranks(self, layouts: Sequence[Layout]) -> RankPool:
        size = max(layout.world_size for layout in layouts)
        return RankPool(self.adapter, self._source.path, size)

    def summary(self) -> Iterator[str]:
        """Yield the notes that follow the complaints."""
        if self.conforming:
            yield f"{self.conforming} findings show nothing wrong."
        if self.never_shown:
            names = ", ".join(sorted({*self.never_shown}))
            yield f"Declared, and nothing that could be run shows it: {names}."
        if self.description is not None:
            yield "Not declared, and so never run:"
            yield from (f"  {line}" for line in coverage.not_declared(self.description))

    def _finding_complaints(self, pool: RankPool, layouts: Sequence[Layout]) -> Iterator[Complaint]:
        cells, left = coverage.chosen_cells(pool.description, layouts)
        self.never_shown += left
        shared = SharedJobs(pool, cells)
        for cell in cells:
            complaint = _judged_in_some_mode(cell, shared)
            if complaint is None:
                self.conforming += 1
            elif isinstance(cell, StartupCell) and complaint.name == NOT_DELIVERED:
                # A framework may have a declared setting, but not all of its values.
                settings = cell.config_case.configuration.settings
                self.never_shown += [f"configuration {one}" for one in sorted(settings)]
            else:
                yield complaint
        yield from _ignored(shared, coverage.configurable(layouts))


def _ignored(shared: SharedJobs, layouts: Sequence[Layout]) -> Iterator[Complaint]:
    """Yield the complaint about declared settings that change nothing, if there are any."""
    if Depth.STEP not in shared.pool.description.depths or not layouts:
        return
    if ignored := shared.ignored_settings(layouts[0]):
        diagnosis = judge_ignored(ignored).diagnosis
        assert diagnosis is not None
        yield Complaint(name=diagnosis.name, where=str(layouts[0]), words=diagnosis.explanation)


def _incomplete_class(adapter: Adapter) -> Complaint | None:
    """The complaint about attributes that ranks need and a class lacks; None if it lacks none."""
    lacking = [] if ON_CPU.device in adapter.devices else [f'devices = ("{ON_CPU.device}",)']
    lacking += [] if ON_CPU.dtype in adapter.dtypes else [f'dtypes = ("{ON_CPU.dtype}",)']
    lacking += [] if adapter.layouts() else ["a layout in layouts()"]
    if not lacking:
        return None
    words = f"nothing can be run before the class has {' and '.join(lacking)}"
    return Complaint(name="nothing_to_run", where=type(adapter).__name__, words=words)


def _judged_in_some_mode(cell: MatrixCell, shared: SharedJobs) -> Complaint | None:
    """The complaint in the first mode that supports the cell, as some losses have one mode only."""
    first = _judged(cell, shared)
    for other in coverage.other_modes(cell, shared.description):
        if first is None or first.name != NOT_DELIVERED:
            break
        found = _judged(other, shared)
        if found is None or found.name != NOT_DELIVERED:
            return found
    return first


def _judged(cell: MatrixCell, shared: SharedJobs) -> Complaint | None:
    try:
        return finding_complaint(make(cell, shared).finding(cell.id, cell.depth))
    except HarnessFaultError as fault:
        return Complaint(name="contradiction", where=cell.id, words=str(fault))
