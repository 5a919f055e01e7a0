"""Runs each job once, whatever the order of the checks that share it.

While one finding is judged, the ranks already run the job of the next finding.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from conformance.corpus.configurations import LOG_ENTRIES
from conformance.judging.further_jobs import FurtherJobs
from conformance.ranks.log_process import LogRequest, Logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adapters.contract import Description, Job, Layout
    from conformance.judging.weights import Outcome
    from conformance.plan.matrix import AnyMatrixCell, MatrixCell
    from conformance.ranks.pool import RankPool


class SharedJobs(FurtherJobs):
    """The outcomes of jobs, each kept until the last selected cell with that job has used it."""

    def __init__(self, pool: RankPool, selected: Iterable[AnyMatrixCell] = ()) -> None:
        super().__init__()
        self.pool = pool
        self._waiting = Counter[str]()
        self.share(selected)
        self._outcomes: dict[str, Outcome] = {}
        self._upcoming: Iterable[MatrixCell] = ()
        self._running: str | None = None
        self._resources = ExitStack()

    def share(self, cells: Iterable[AnyMatrixCell]) -> None:
        """Announce further cells that will ask for the outcomes of their jobs."""
        self._waiting.update(cell.job_id for cell in cells)

    def close(self) -> None:
        """End the processes that make logs."""
        self._resources.close()

    @cached_property
    def logs(self) -> Logs:
        """The framework's logs; the processes that make logs start at the first use."""
        pool = self.pool
        request = LogRequest(
            adapter=pool.adapter, source=pool.source, hardware=pool.hardware, cases=LOG_ENTRIES
        )
        return self._resources.enter_context(Logs(request))

    @property
    def description(self) -> Description:
        """The detected capabilities of the framework."""
        return self.pool.description

    @property
    def layouts(self) -> Sequence[Layout]:
        """All layouts of the adapter."""
        return self.pool.adapter.layouts()

    def expect(self, upcoming: Iterable[MatrixCell]) -> None:
        """Announce, in order, the cells whose outcomes will be asked for after the next outcome.

        The call for the next outcome begins the first of their jobs that has not run.
        """
        self._upcoming = upcoming

    def run(self, job: Job) -> Outcome:
        """Runs a job that no cell shares, once the ranks have run the job that was begun."""
        self.settle()
        return self.pool.run(job)

    def settle(self) -> None:
        """Wait for the job that was begun for a later cell, if there is one."""
        if self._running is not None:
            self._outcomes[self._running], self._running = self.pool.outcome(), None

    def outcome(self, cell: MatrixCell) -> Outcome:
        """The outcome of the cell's job, which is run unless it was run for another cell.

        Raises:
            StartError: the framework cannot be imported.
        """
        outcome = self._outcomes.pop(cell.job_id, None) or self._finish(cell)
        self._waiting[cell.job_id] -= 1
        if self._waiting[cell.job_id] > 0:
            self._outcomes[cell.job_id] = outcome
        self._begin_upcoming()
        return outcome

    def _finish(self, cell: MatrixCell) -> Outcome:
        if self._running != cell.job_id:
            return self.run(cell.job)
        self._running = None
        return self.pool.outcome()

    def _begin_upcoming(self) -> None:
        upcoming, self._upcoming = self._upcoming, ()
        if self._running is not None:
            return
        cell = next((one for one in upcoming if one.job_id not in self._outcomes), None)
        if cell is not None and self.pool.is_running:
            self.pool.begin(cell.job)
            self._running = cell.job_id
