"""Runs one version in a review: the head chooses jobs by the change, the base runs the same jobs.

The base is one job behind, so that both have the same findings whenever they are stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing import journal
from conformance.comparing.reviewed import worse
from conformance.plan.matrix import StartupCell
from conformance.plan.telling import Jobs, Order, name_of
from conformance.ranks import changed
from conformance.runs import carried as carried_over
from conformance.runs import review_task
from conformance.runs.beyond_plan import made_and_recorded
from conformance.runs.check import is_offered, job_cells
from conformance.runs.recorder import DECLINED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.changed import Place
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingRecorder

POLL = 0.1
"""Seconds between two readings of the other side's findings."""

MOST_BEHIND = 20.0
"""Seconds that the head waits for missing findings of the base before it traces."""


@dataclass
class Side:
    """The run of one version; ``path`` is the file that describes its task."""

    path: Path
    recorder: FindingRecorder
    jobs: SharedJobs
    headers: Iterator[str]

    def __post_init__(self) -> None:
        self.task = review_task.ReviewTask.read(self.path)
        settings = self.recorder.settings
        self.candidates = Jobs(settings.plan, settings.adapter, self.task.layouts)
        self.findings: dict[str, Finding] = {}

    def run(self) -> None:
        """Make the findings of this side."""
        if self.task.follows is None:
            self._lead()
        else:
            self._follow(Path(self.task.follows))

    def _lead(self) -> None:
        """Make findings, starting with jobs that run most of the change."""
        lines = self.task.lines or {}
        marks = [changed.marks(Path(name), several) for name, several in lines.items()]
        order = Order(
            self.candidates,
            [place for one in marks for place in one.places],
            lambda cell: is_offered(cell, self.jobs.description),
            is_everywhere=any(one.is_of_module for one in marks),
        )
        while (turn := order.next()) is not None:
            if self._is_time_to_trace():
                review_task.note_more(self.path)
                return
            if turn.is_scout:
                [scout] = turn.cells
                order.note(scout, self._scouted(scout))
            else:
                self._make(turn.cells, order)

    def _scouted(self, scout: MatrixCell) -> frozenset[Place]:
        """The changed statements that a job runs; the job's outcome is kept for its findings."""
        if isinstance(scout, StartupCell):
            self.jobs.run(scout.job)
        else:
            self.jobs.share([scout, scout])
            self.jobs.outcome(scout)
        ran = self._ran(scout)
        review_task.note(self.path, ran)
        return ran

    def _ran(self, cell: MatrixCell) -> frozenset[Place]:
        return self.jobs.pool.ran.get(cell.job, frozenset())

    def _make(self, cells: Sequence[MatrixCell], order: Order | None = None) -> None:
        """Make the findings of one job, and begin the next job meanwhile."""
        self.jobs.share(cells)
        for cell in cells:
            self.jobs.expect(self._upcoming(cell, order))
            header = next(self.headers)
            finding = made_and_recorded(cell, self.recorder, self.jobs, header)
            self.findings[finding.id] = finding
        if order and all(self.findings[one.id].verdict in DECLINED for one in cells):
            order.note_declined(cells[0])

    def _upcoming(self, cell: MatrixCell, order: Order | None) -> Iterator[MatrixCell]:
        if order is None:
            return
        ran = self._ran(cell)
        order.note(cell, ran)
        review_task.note(self.path, ran)
        if (turn := order.upcoming()) is not None:
            yield from job_cells(turn.cells[:1], self.jobs.description)

    def _follow(self, head: Path) -> None:
        """Make the head's findings, in the same order, until the head has ended."""
        done = {*self.task.kept}
        while True:
            has_ended = head.exists()
            for name in (one.id for one in journal.findings(head)):
                if name in done:
                    continue
                cell = self.candidates.by_id[name]
                cells = self.candidates.cells[name_of(cell)]
                self._make([one for one in cells if one.id not in done])
                done.update(one.id for one in cells)
            if has_ended:
                return
            time.sleep(POLL)

    def _is_time_to_trace(self) -> bool:
        return time.time() > self.task.trace_at and bool([*self.worse()])

    def worse(self) -> list[Finding]:
        """The findings of the head that are worse than the base's."""
        return [*worse(_made_by(self.task.base), self.findings.values())]

    def new_causes(self) -> list[Cause]:
        """The causes of findings that are worse."""
        worse = {finding.id for finding in self.worse()}
        return [one for one in self.recorder.causes() if worse.intersection(one.findings)]

    def name_what_is_carried(self) -> None:
        """Rename mistakes of findings that carry numbers over from the previous job."""
        carried = [*carried_over.of_causes(self.new_causes(), self._made_cells, self.jobs)]
        for finding in carried_over.renamed(carried, self.findings):
            self.findings[finding.id] = finding
            self.recorder.journal.replace(finding)

    @property
    def _made_cells(self) -> dict[str, MatrixCell]:
        ran = {name: one for name, one in self.findings.items() if one.verdict not in DECLINED}
        return {name: self.candidates.by_id[name] for name in ran}

    def wait_for_base(self) -> None:
        """Wait until the base has made the head's findings, for `MOST_BEHIND` seconds at most."""
        latest = time.monotonic() + MOST_BEHIND
        while time.monotonic() < latest and {*self.findings} - {*_made_by(self.task.base)}:
            time.sleep(POLL)


def _made_by(reports: Sequence[str]) -> dict[str, Finding]:
    """The findings of several runs by id; runs may not have ended."""
    return {one.id: one for report in reports for one in journal.findings(Path(report))}
