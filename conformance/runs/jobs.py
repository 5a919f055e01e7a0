"""Runs each job once, whatever the order of the checks that share it.

While one finding is judged, the ranks are busy with the job of the next.
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
"""The most outcomes kept of jobs that cells share which follow each other."""


class SharedJobs:
    """The outcomes of jobs, each kept until the last of the selected cells that share it asks."""

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
        """Name further cells that are about to ask for the outcomes of their jobs."""
        self._waiting.update(cell.job_id for cell in cells)

    def close(self) -> None:
        """Put an end to the processes that make logs."""
        self._resources.close()

    @cached_property
    def logs(self) -> Logs:
        """The framework's logs; processes that make them start when they are first asked for."""
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
        """Name the cells whose outcomes are asked for after the next one, in their order.

        The first of them that needs another job is begun.
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
        """The settings that the adapter declares and does not pass on, found out on a layout."""
        if self._ignored is None:
            self._ignored = ignored_settings(self.description, layout, self.observations)
        return self._ignored

    def reads(self, metric: Metric, job: Job) -> bool:
        """Whether the adapter reads a metric of a job's objective off ordinary steps.

        They are trained on one rank and on the layout of the first job that lacks the metric. What
        none of them logs is logged elsewhere by this version, if at all.
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
        """The trainer's rescaling of right gradients, found out by the trial of a job."""
        key = job.aggregation, job.layout, job.depth
        if key not in self._rescalings:
            tried = trial(job)
            observations = self.observations(tried)
            shown = observations and judge_weights(tried, observations, self.description).rescalings
            self._rescalings[key] = shown[0] if shown else None
        return self._rescalings[key]

    def remembered(self, job: Job) -> Ran | Declined | Crashed:
        """Runs a job that the next cells share, unless it was run as one of the last few."""
        if job not in self._remembered:
            for oldest in [*self._remembered][: 1 - MOST_REMEMBERED]:
                del self._remembered[oldest]
            self._remembered[job] = self.run(job)
        return self._remembered[job]

    def behaviour(self, job: Job, observations: Sequence[Observation]) -> Behaviour:
        """The result of a job, to compare versions by."""
        is_logging = any(one.logged for one in observations)
        names = self.steady_numbers(job) if is_logging else ()
        return behaviour(job, observations, self.description, names)

    def steady_numbers(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that values of a batch move, and nothing else does.

        They are found out by an ordinary step of the job's objective on the smallest layout.
        """
        if job.objective not in self._steady:
            usual = self._usual(job, job.objective)
            self.run(usual)  # so that the same kind of step was trained before each of the others
            runs = [self.observations(one) for one in (usual, with_other_values(usual), usual)]
            ran = [one for one in runs if one is not None]
            self._steady[job.objective] = frozenset()
            if len(ran) == len(runs):
                self._steady[job.objective] = steady_numbers(usual, ran, self.description.dtype)
        return self._steady[job.objective]

    def numbers_of_rewards(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that rewards move where advantages are made of them."""
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
        """Yield steps whose advantages are made of rewards, as some layouts decline them.

        Those of a critic are the last: they normalise no rewards.
        """
        offered = self.description.objectives
        estimators = [one for one in FROM_REWARDS[::-1] if one in offered] or [job.objective]
        fewest = self._smallest_layout.world_size
        for layout in takewhile(lambda one: one.world_size == fewest, self._layouts):
            yield from (replace(self._usual(job, one), layout=layout) for one in estimators)

    def _usual(self, job: Job, objective: Objective) -> Job:
        """An ordinary step of an objective on the smallest layout, else like a job."""
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
        """Runs the cell's job unless another cell has.

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
    """Whether some rank reports a metric of some step."""
    return any(
        value is not None
        for observation in observations
        for value in observation.reported.get(metric, ())
    )
