"""Tests the probe of an adapter in a few jobs, and ends with the first mistake."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from adapters.contract import Depth
from adapters.contract.objective import Objective
from conformance.checker import coverage, explanations, jobs
from conformance.checker.complaint import Complaint, outcome_complaint
from conformance.expected.placement import forward_pass_of_token
from conformance.judging.rescaling import trial
from conformance.judging.weights import Trained, judge_weights
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Description, Job, Layout, Observation
    from conformance.checker.explanations import Flaw
    from conformance.checker.jobs import StepWeights
    from conformance.ranks.pool import RankPool


MAY_BE_OF_THE_FRAMEWORK = {"factor", "unexplained", "not_finite"}
"""Flaws that may also come from a mistake of the framework."""


class _Complained(Exception):  # noqa: N818 - it carries a complaint, and no error
    """A mistake was found, so later tests would tell nothing more."""

    def __init__(self, complaint: Complaint) -> None:
        self.complaint = complaint


def supported(pool: RankPool, layouts: Sequence[Layout]) -> list[Layout]:
    """The layouts that this version of the framework supports; adapters may list more.

    If it supports none of them, the first layout is kept, so that its failure tells the reason.

    Raises:
        StartError: the framework cannot be imported.
    """
    known = [one for one in layouts if coverage.is_declared(one, pool.description)]
    return [one for one in known if _has(pool, one)] or [*layouts[:1]]


def _has(pool: RankPool, layout: Layout) -> bool:
    """Whether a step runs in any mode, or fails for another reason than missing support."""
    depths = coverage.depths(pool.description)[:1]
    tried = [jobs.job(layout, depth, mode, jobs.EQUAL) for depth in depths for mode in Mode]
    outcomes = (pool.run(job) for job in tried if job.aggregation.mode in pool.description.modes)
    return any(
        not isinstance(outcome, Declined) or outcome.verdict != "unsupported"
        for outcome in outcomes
    )


def first_complaint(pool: RankPool, layouts: Sequence[Layout]) -> Complaint | None:
    """The complaint about the first mistake of the probe; None if the probe is right.

    Raises:
        StartError: the framework cannot be imported.
    """
    try:
        _require_capabilities(pool.description)
        Probing(pool, layouts).require_all()
    except _Complained as wrong:
        return wrong.complaint
    return None


def _require_capabilities(description: Description) -> None:
    """Require the capabilities that every job needs to be declared."""
    lacking = [name for name in ("modes", "depths") if not getattr(description, name)]
    lacking += [] if Objective.POLICY in description.objectives else ["objectives policy"]
    if lacking:
        words = f"describe() declares no {' and no '.join(lacking)}, so no job can be run"
        raise _Complained(Complaint(name="nothing_to_run", where="describe()", words=words))


@dataclass(frozen=True)
class Probing:
    """Jobs whose samples all weigh the same in every mode, on some layouts of an adapter."""

    pool: RankPool
    layouts: Sequence[Layout]

    def require_all(self) -> None:
        """Require the probe to be right, the most basic property first.

        Raises:
            _Complained: the probe is wrong.
        """
        try:
            mode = self._right_mode(self._depth)
        except _Complained as wrong:
            if wrong.complaint.name in MAY_BE_OF_THE_FRAMEWORK:
                self._require_no_rescaling(min(self.pool.description.modes))
            raise
        self._require_repetition(mode)
        self._require_steps(mode)
        self._require_no_rescaling(mode)
        for layout in self._plain_layouts:
            self._require_padding(mode, layout)
        for depth in coverage.depths(self.pool.description)[1:]:
            self._right_mode(depth)

    @cached_property
    def _depth(self) -> Depth:
        return coverage.depths(self.pool.description)[0]

    @cached_property
    def _plain_layouts(self) -> list[Layout]:
        """Layouts on which a rank holds whole samples."""
        return [one for one in self.layouts if one.cp == one.tp == one.pp == 1 and not one.options]

    def _right_mode(self, depth: Depth) -> Mode:
        """The first mode in which weights are right; a framework may be wrong in some modes."""
        wrong: list[_Complained] = []
        for mode in (mode for mode in Mode if mode in self.pool.description.modes):
            try:
                self._require_weights(jobs.job(self.layouts[0], depth, mode, jobs.EQUAL))
            except _Complained as found:
                wrong.append(found)
            else:
                return mode
        raise wrong[0]

    def _require_no_rescaling(self, mode: Mode) -> None:
        """Require the trainer not to clip or scale the gradients that the adapter reads."""
        job = trial(jobs.job(self.layouts[0], self._depth, mode, jobs.EQUAL))
        outcome = self.pool.run(job)
        if not isinstance(outcome, Ran):
            return
        self._require_shapes(job, outcome)
        trained = Trained(job, outcome.observations, self.pool.description)
        for found in judge_weights(trained).rescalings:
            words, where = found.diagnosis.explanation, jobs.described(job)
            raise _Complained(Complaint(name=found.name, where=where, words=words))

    def _require_repetition(self, mode: Mode) -> None:
        job = jobs.job(self.layouts[0], self._depth, mode, jobs.EQUAL)
        [first], [second] = self._weights(job), self._weights(job)
        _require(job, explanations.explain_repetition(first, second))

    def _require_steps(self, mode: Mode) -> None:
        """Require two steps to be right, with all their tokens in forward passes."""
        job = jobs.job(self.layouts[0], self._depth, mode, jobs.EQUAL, jobs.EQUAL)
        observations = self._require_weights(job)
        if self._records_passes:
            for index, step in enumerate(job.steps):
                passes = forward_pass_of_token(observations, index, job.layout)
                _require(job, explanations.explain_forward_passes(step, passes))

    def _require_padding(self, mode: Mode, layout: Layout) -> None:
        """Require padding to have no weight, and no token's id."""
        job = jobs.job(layout, self._depth, mode, jobs.PADDED)
        observations = self._observations(job)
        [weights] = jobs.weights_of_steps(job, observations, self.pool.description)
        _require(job, explanations.explain_padding(weights))
        passes = forward_pass_of_token(observations, 0, layout)
        if self._records_passes and passes is not None:
            _require(job, explanations.explain_strays(weights.step, passes))

    @property
    def _records_passes(self) -> bool:
        return self.pool.description.records_forward_passes and self._depth is Depth.STEP

    def _require_weights(self, job: Job) -> Sequence[Observation]:
        """The observations of a job, whose weights are required to be right."""
        observations = self._observations(job)
        steps = jobs.weights_of_steps(job, observations, self.pool.description)
        for number, weights in enumerate(steps, 1):
            where = f", step {number} of {len(steps)}" if len(steps) > 1 else ""
            _require(job, explanations.explain_weights(weights), where)
        return observations

    def _weights(self, job: Job) -> list[StepWeights]:
        return jobs.weights_of_steps(job, self._observations(job), self.pool.description)

    def _observations(self, job: Job) -> Sequence[Observation]:
        """The observations of all ranks, whose arrays are required to have the right shapes."""
        outcome = self.pool.run(job)
        if not isinstance(outcome, Ran):
            raise _Complained(outcome_complaint(outcome, jobs.described(job)))
        self._require_shapes(job, outcome)
        return outcome.observations

    def _require_shapes(self, job: Job, outcome: Ran) -> None:
        """Require every array to have an entry for each token."""
        for observation in outcome.observations[job.layout.last_stage]:
            _require(job, explanations.explain_shapes(job, observation))


def _require(job: Job, flaw: Flaw | None, step: str = "") -> None:
    if flaw is not None:
        where = f"{jobs.described(job)}{step}"
        of_adapter = flaw.name not in MAY_BE_OF_THE_FRAMEWORK
        raise _Complained(
            Complaint(name=flaw.name, where=where, words=flaw.words, of_adapter=of_adapter)
        )
