"""Runs each job once, whatever the order of the checks that share it.

While one finding is judged, the ranks already run the job of the next finding.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from adapters.contract.objective import FROM_REWARDS
from conformance.corpus.configurations import LOG_ENTRIES
from conformance.judging.laws import behaviour, changed_numbers, steady_numbers
from conformance.judging.rescaling import trial
from conformance.judging.startup import ignored_settings
from conformance.judging.weights import judge_weights
from conformance.laws.law import with_other_rewards, with_other_values
from conformance.plan.checks import usual_case
from conformance.ranks.log_process import LogRequest, Logs
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Depth, Description, Job, Layout, Observation
    from adapters.contract.job import Setting
    from adapters.contract.objective import Metric, Objective
    from conformance.findings.finding import Behaviour
    from conformance.judging.rescaling import Rescaling
    from conformance.plan.matrix import AnyMatrixCell, MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed, RankPool
    from reference.aggregation import Aggregation


MOST_REMEMBERED = 3
"""The most outcomes that are kept by `SharedJobs.remembered`, for cells that follow each other."""


class SharedJobs:
    """The outcomes of jobs, each kept until the last selected cell with that job has used it."""

    def __init__(self, pool: RankPool, selected: Iterable[AnyMatrixCell] = ()) -> None:
        self.pool = pool
        self._waiting = Counter[str]()
        self.share(selected)
        self._outcomes: dict[str, Ran | Declined | Crashed] = {}
        self._ignored: frozenset[Setting] | None = None
        self._read: dict[tuple[Metric, Objective], bool] = {}
        self._rescalings: dict[tuple[Aggregation, Layout, Depth], Rescaling | None] = {}
        self._steady: dict[Objective, frozenset[str]] = {}
        self._of_rewards: frozenset[str] | None = None
        self._remembered: dict[Job, Ran | Declined | Crashed] = {}
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

    def expect(self, upcoming: Iterable[MatrixCell]) -> None:
        """Announce, in order, the cells whose outcomes will be asked for after the next one.

        The first of these cells that needs another job has its job begun.
        """
        self._upcoming = upcoming

    def run(self, job: Job) -> Ran | Declined | Crashed:
        """Runs a job that no cell shares.

        Raises:
            StartError: the framework cannot be imported.
        """
        self.settle()
        return self.pool.run(job)

    def settle(self) -> None:
        """Wait for the job that was begun for a later cell, if there is one."""
        if self._running is not None:
            self._outcomes[self._running], self._running = self.pool.outcome(), None

    def ignored_settings(self, layout: Layout) -> frozenset[Setting]:
        """The settings that the adapter declares but does not pass on, as runs on a layout show."""
        if self._ignored is None:
            self._ignored = ignored_settings(self.description, layout, self.observations)
        return self._ignored

    def reads(self, metric: Metric, job: Job) -> bool:
        """Whether the adapter reads a metric of a job's objective from ordinary steps.

        The ordinary steps run on the smallest layout and on that of the first job that lacks the
        metric. If none logs it, this version logs the metric elsewhere, if at all.
        """
        key = metric, job.objective
        if key not in self._read:
            ordinary = self._usual(job, job.objective)
            self._read[key] = any(
                reports(metric, self.observations(replace(ordinary, layout=layout)) or ())
                for layout in (job.layout, self._smallest_layout)
            )
        return self._read[key]

    def rescaling(self, job: Job) -> Rescaling | None:
        """The trainer's rescaling of right gradients, as shown by the trial job for a job."""
        key = job.aggregation, job.layout, job.depth
        if key not in self._rescalings:
            tried = trial(job)
            observations = self.observations(tried)
            shown = observations and judge_weights(tried, observations, self.description).rescalings
            self._rescalings[key] = shown[0] if shown else None
        return self._rescalings[key]

    def remembered(self, job: Job) -> Ran | Declined | Crashed:
        """The outcome of a job that consecutive cells share; runs it unless it is remembered."""
        if job not in self._remembered:
            for oldest in [*self._remembered][: 1 - MOST_REMEMBERED]:
                del self._remembered[oldest]
            self._remembered[job] = self.run(job)
        return self._remembered[job]

    def behaviour(self, job: Job, observations: Sequence[Observation]) -> Behaviour:
        """The result of a job, for comparing versions of the framework."""
        is_logging = any(one.logged for one in observations)
        names = self.steady_numbers(job) if is_logging else ()
        return behaviour(job, observations, self.description, names)

    def steady_numbers(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that depend on the values of a batch and on nothing else.

        An ordinary step of the job's objective on the smallest layout shows which numbers do.
        """
        if job.objective not in self._steady:
            usual = self._usual(job, job.objective)
            self.run(usual)  # so that a step of the same kind precedes each compared step
            runs = [self.observations(one) for one in (usual, with_other_values(usual), usual)]
            ran = [one for one in runs if one is not None]
            self._steady[job.objective] = frozenset()
            if len(ran) == len(runs):
                self._steady[job.objective] = steady_numbers(usual, ran, self.description.dtype)
        return self._steady[job.objective]

    def numbers_of_rewards(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that depend on rewards if these determine advantages."""
        if self._of_rewards is None:
            self._of_rewards = frozenset()
            for usual in self._steps_of_rewards(job):
                if before := self.observations(usual):
                    after = self.observations(with_other_rewards(usual)) or ()
                    moved = changed_numbers(usual, before, after, self.description.dtype)
                    self._of_rewards = frozenset(moved)
                    break
        return self._of_rewards

    def _steps_of_rewards(self, job: Job) -> Iterator[Job]:
        """Yield steps whose advantages are made of rewards; several, as layouts may decline them.

        Steps of a critic come last, since a critic's estimator normalises no rewards.
        """
        offered = self.description.objectives
        estimators = [one for one in FROM_REWARDS[::-1] if one in offered] or [job.objective]
        fewest = self._smallest_layout.world_size
        for layout in takewhile(lambda one: one.world_size == fewest, self._layouts):
            yield from (replace(self._usual(job, one), layout=layout) for one in estimators)

    def _usual(self, job: Job, objective: Objective) -> Job:
        """An ordinary step of an objective on the smallest layout, with a job's other fields."""
        case = usual_case(objective)
        return replace(
            job,
            steps=case.steps,
            aggregation=case.aggregation(self.description.default_mode),
            layout=self._smallest_layout,
            objective=objective,
        )

    @property
    def _smallest_layout(self) -> Layout:
        return self._layouts[0]

    @property
    def _layouts(self) -> list[Layout]:
        """All layouts of the adapter, the smallest first."""
        layouts = self.pool.adapter.layouts()
        return sorted(layouts, key=lambda one: (one.world_size, str(one)))

    def observations(self, job: Job) -> tuple[Observation, ...] | None:
        """The ranks' observations of a job that no cell shares; None if it does not run."""
        outcome = self.run(job)
        return outcome.observations if isinstance(outcome, Ran) else None

    def outcome(self, cell: MatrixCell) -> Ran | Declined | Crashed:
        """The outcome of the cell's job, which is run unless another cell's request has run it.

        Raises:
            StartError: the framework cannot be imported.
        """
        outcome = self._outcomes.pop(cell.job_id, None) or self._finish(cell)
        self._waiting[cell.job_id] -= 1
        if self._waiting[cell.job_id] > 0:
            self._outcomes[cell.job_id] = outcome
        self._begin_upcoming()
        return outcome

    def _finish(self, cell: MatrixCell) -> Ran | Declined | Crashed:
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


def reports(metric: Metric, observations: Sequence[Observation]) -> bool:
    """Whether at least one rank reports a metric in at least one step."""
    return any(
        value is not None
        for observation in observations
        for value in observation.reported.get(metric, ())
    )
