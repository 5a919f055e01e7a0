"""Jobs that judging needs besides a cell's own job, and facts about a framework that they show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import wraps
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar, cast

from adapters.contract.job import DEFAULT_CONFIGURATION
from adapters.contract.objective import FROM_REWARDS
from conformance.corpus.configurations import TRIALS
from conformance.judging.comparison import (
    behaviour,
    changed_numbers,
    differing_gradients,
    steady_numbers,
)
from conformance.judging.rescaling import trial
from conformance.judging.weights import Trained, judge_weights
from conformance.laws.law import with_other_rewards, with_other_values
from conformance.plan.checks import usual_case
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from adapters.contract import Description, Job, Layout
    from adapters.contract.job import Setting
    from adapters.contract.objective import Metric, Objective
    from conformance.findings.finding import Behaviour
    from conformance.judging.rescaling import Rescaling
    from conformance.judging.weights import Outcome

_Method = TypeVar("_Method", bound="Callable[..., Any]")

MOST_REMEMBERED = 3
"""The most outcomes that are kept by `FurtherJobs.remembered`, for cells that follow each other."""


def _once_per(*fields: str) -> Callable[[_Method], _Method]:
    """Caches a method's result by fields of its first argument and by all further arguments."""

    def decorated(find: _Method) -> _Method:
        @wraps(find)
        def answer(self: FurtherJobs, asked: Any, *others: Hashable) -> Any:
            key = find.__name__, *(getattr(asked, name) for name in fields), *others
            if key not in self._answers:
                self._answers[key] = find(self, asked, *others)
            return self._answers[key]

        return cast("_Method", answer)

    return decorated


class FurtherJobs(ABC):
    """Runs jobs, and keeps what they show for other cells."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}
        self._remembered: dict[Job, Outcome] = {}

    @property
    @abstractmethod
    def description(self) -> Description:
        """The detected capabilities of the framework."""

    @property
    @abstractmethod
    def layouts(self) -> Sequence[Layout]:
        """All layouts of the adapter."""

    @abstractmethod
    def run(self, job: Job) -> Outcome:
        """Runs a job that no cell shares.

        Raises:
            StartError: the framework cannot be imported.
        """

    def trained(self, job: Job, ran: Ran) -> Trained:
        """A job with its observations, to be judged."""
        return Trained(job, ran.observations, self.description)

    def train(self, job: Job) -> Trained | None:
        """Runs a job that no cell shares; returns None if it does not run."""
        outcome = self.run(job)
        return self.trained(job, outcome) if isinstance(outcome, Ran) else None

    def remembered(self, job: Job) -> Outcome:
        """The outcome of a job that consecutive cells share; runs it unless it is remembered."""
        if job not in self._remembered:
            for oldest in [*self._remembered][: 1 - MOST_REMEMBERED]:
                del self._remembered[oldest]
            self._remembered[job] = self.run(job)
        return self._remembered[job]

    @_once_per()
    def ignored_settings(self, layout: Layout) -> frozenset[Setting]:
        """The declared settings that change no weights although they must, on the first layout."""
        offered = self.description
        return frozenset(
            setting
            for setting, trial_of in TRIALS.items()
            if setting in offered.configurations
            and (modes := [mode for mode in trial_of.modes if mode in offered.modes])
            and all(self._is_ignored(trial_of.job(mode, layout)) for mode in modes)
        )

    def _is_ignored(self, job: Job) -> bool:
        """Whether a job's weights are those of the default configuration, bit for bit."""
        configured = self.train(job)
        default = self.train(replace(job, configuration=DEFAULT_CONFIGURATION))
        if configured is None or default is None:
            return False
        return differing_gradients(replace(default, job=job), configured, 0.0) is None

    @_once_per("objective")
    def reads(self, job: Job, metric: Metric) -> bool:
        """Whether the adapter reads a metric of a job's objective from ordinary steps.

        The ordinary steps run on the smallest layout and on that of the first job that lacks the
        metric. If none logs it, this version logs the metric elsewhere, if at all.
        """
        usual = self._usual(job, job.objective)
        of_layouts = (replace(usual, layout=job.layout), usual)
        return any(ran.reports(metric) for one in of_layouts if (ran := self.train(one)))

    @_once_per("aggregation", "layout", "depth")
    def rescaling(self, job: Job) -> Rescaling | None:
        """The trainer's rescaling of right gradients, as the trial of a job shows it."""
        tried = self.train(trial(job))
        return next(iter(judge_weights(tried).rescalings), None) if tried else None

    def behaviour(self, trained: Trained) -> Behaviour:
        """The result of a job, for comparing versions of the framework."""
        is_logging = any(one.logged for one in trained.observations)
        return behaviour(trained, self.steady_numbers(trained.job) if is_logging else ())

    @_once_per("objective")
    def steady_numbers(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that depend on the values of a batch and on nothing else.

        An ordinary step of the job's objective on the smallest layout shows which numbers do.
        """
        usual = self._usual(job, job.objective)
        self.run(usual)  # so that a step of the same kind precedes each compared step
        first, other, again = map(self.train, (usual, with_other_values(usual), usual))
        if first is None or other is None or again is None:
            return frozenset()
        return steady_numbers(first, other, again)

    @_once_per()
    def numbers_of_rewards(self, job: Job) -> frozenset[str]:
        """The names of logged numbers that rewards change, in a step with advantages from them."""
        for usual in self._steps_of_rewards(job):
            if before := self.train(usual):
                after = self.train(with_other_rewards(usual))
                return frozenset(changed_numbers(before, after)) if after else frozenset()
        return frozenset()

    def _steps_of_rewards(self, job: Job) -> Iterator[Job]:
        """Yield jobs that compute advantages from rewards; several, since layouts may decline some.

        Jobs with a critic come last, since a critic's estimator normalises no rewards.
        """
        offered = self.description.objectives
        estimators = [one for one in FROM_REWARDS[::-1] if one in offered] or [job.objective]
        layouts = self._smallest_first
        fewest = layouts[0].world_size
        for layout in takewhile(lambda one: one.world_size == fewest, layouts):
            yield from (replace(self._usual(job, one), layout=layout) for one in estimators)

    def _usual(self, job: Job, objective: Objective) -> Job:
        """An ordinary step of an objective on the smallest layout, with a job's other fields."""
        case = usual_case(objective)
        return replace(
            job,
            steps=case.steps,
            aggregation=case.aggregation(self.description.default_mode),
            layout=self._smallest_first[0],
            objective=objective,
        )

    @property
    def _smallest_first(self) -> list[Layout]:
        return sorted(self.layouts, key=lambda one: (one.world_size, str(one)))
