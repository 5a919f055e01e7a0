"""Runs what a law needs besides the changed step: the step before, once more, with other values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from conformance.findings.verdict import Verdict
from conformance.judging.laws import (
    changed_numbers,
    judge_changed,
    logged_names,
    moves_gradient,
)
from conformance.judging.weights import unjudged
from conformance.laws.law import with_other_values
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from adapters.contract import Observation
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed
    from conformance.runs.jobs import SharedJobs

    Outcome = Ran | Declined | Crashed
    OfGradient = Callable[[MatrixCell, Outcome], Judgement]


def judge_law(
    cell: MatrixCell, changed: Outcome, jobs: SharedJobs, of_gradient: OfGradient
) -> Judgement:
    """Whether a changed step has the right gradient, and logs what it logged before.

    A gradient that is wrong before the change as well is not the law's.
    """
    law = cell.spec.law
    assert law is not None
    before = _Before(replace(cell, spec=replace(cell.spec, law=None)), jobs)
    if not isinstance(before.outcome, Ran):
        return unjudged(Verdict.UNSUPPORTED, f"without the change: {before.outcome.message}")
    judged = of_gradient(cell, changed)
    is_right = judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)
    if not is_right and of_gradient(before.cell, before.outcome).verdict is Verdict.CONFORMS:
        return judged
    if not isinstance(changed, Ran):
        return judged
    runs = (before.cell.job, before.observations), (cell.job, changed.observations)
    if is_right and moves_gradient(*runs, jobs.description, judged.tolerance or 0.0):
        return unjudged(Verdict.UNSUPPORTED, f"by its conventions it matters whether {law.says}")
    numbers = before.differing(changed.observations)
    for others in (lambda: before.noise, lambda: set() if law.counts_stay else before.counts):
        if numbers:
            left_out = others()
            numbers = {name: pair for name, pair in numbers.items() if name not in left_out}
    return replace(judge_changed(law, numbers, jobs.description), clues=judged.clues)


@dataclass(frozen=True)
class _Before:
    """The step before a law's change, which the cells of several laws share."""

    cell: MatrixCell
    jobs: SharedJobs

    @cached_property
    def outcome(self) -> Outcome:
        return self.jobs.remembered(self.cell.job_id, self.cell.job)

    @cached_property
    def observations(self) -> tuple[Observation, ...]:
        assert isinstance(self.outcome, Ran)
        return self.outcome.observations

    def differing(self, after: tuple[Observation, ...]) -> dict[str, tuple[float, float]]:
        """The numbers that another run logs differently, and that no other check looks at."""
        description, objective = self.jobs.description, self.cell.spec.objective
        looked_at = {
            description.logged_as.get(spec.metric)
            for spec in CHECK_SPECS
            if spec.metric is not None and spec.objective is objective
        }
        differ = changed_numbers(self.cell.job, self.observations, after, description.dtype)
        return {name: pair for name, pair in differ.items() if name not in looked_at}

    @cached_property
    def noise(self) -> AbstractSet[str]:
        """The numbers that are not what they were where nothing has changed, such as times."""
        again = self.jobs.remembered(f"{self.cell.job_id}, once more", self.cell.job)
        return self.differing(again.observations).keys() if isinstance(again, Ran) else set()

    @cached_property
    def counts(self) -> AbstractSet[str]:
        """The numbers that no value of a token or sample changes."""
        others = with_other_values(self.cell.job)
        run = self.jobs.remembered(f"{self.cell.job_id}, with other values", others)
        moved = self.differing(run.observations) if isinstance(run, Ran) else {}
        return logged_names(self.observations) - moved.keys()
