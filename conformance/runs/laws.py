"""Runs what a law needs besides the changed step: the step before, once more, with other values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conformance.findings.verdict import Verdict
from conformance.judging.laws import (
    changed_numbers,
    judge_changed,
    logged_names,
    moved_numbers,
    moves_gradient,
)
from conformance.judging.weights import unjudged
from conformance.laws.law import with_other_values
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.contract import Job, Observation
    from conformance.judging.laws import Changes
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed
    from conformance.runs.jobs import SharedJobs

    Outcome = Ran | Declined | Crashed
    OfGradient = Callable[[MatrixCell, Outcome], Judgement]


def judge_law(
    cell: MatrixCell, after: Outcome, jobs: SharedJobs, of_gradient: OfGradient
) -> Judgement:
    """Whether a changed step has the right gradient, and logs what it logged before.

    A gradient that is wrong before the change as well is not the law's.
    """
    law, job = cell.spec.law, cell.job_before
    assert law is not None
    before = jobs.remembered(job, job)
    if not isinstance(before, Ran):
        return unjudged(Verdict.UNSUPPORTED, f"without the change: {before.message}")
    judged = of_gradient(cell, after)
    is_right = judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)
    if not is_right and _is_right_before(cell, before, of_gradient):
        return judged
    if not isinstance(after, Ran):
        return judged
    runs = (job, before.observations), (cell.job, after.observations)
    if is_right and moves_gradient(*runs, jobs.description, judged.tolerance or 0.0):
        return unjudged(Verdict.UNSUPPORTED, f"by its conventions it matters whether {law.says}")
    controls = _Controls(job, before.observations, jobs)
    changed = controls.changes(cell.spec.objective, after.observations)
    if changed:
        changed = controls.without_noise(changed)
    if changed and not law.counts_stay:
        changed = controls.without_counts(changed)
    return replace(judge_changed(law, changed, jobs.description), clues=judged.clues)


def _is_right_before(cell: MatrixCell, before: Ran, of_gradient: OfGradient) -> bool:
    plain = replace(cell, layout=cell.job_before.layout, spec=replace(cell.spec, law=None))
    return of_gradient(plain, before).verdict is Verdict.CONFORMS


@dataclass(frozen=True)
class _Controls:
    """What else changes the numbers that a step logs."""

    job: Job
    before: tuple[Observation, ...]
    jobs: SharedJobs

    def changes(self, objective: str, after: tuple[Observation, ...]) -> Changes:
        """The numbers that the changed step logs differently, and that no other check looks at."""
        changed = changed_numbers(self.job, self.before, after, self.jobs.description.dtype)
        left_out = {*self._looked_at(objective), *self.jobs.noise}
        return {name: pair for name, pair in changed.items() if name not in left_out}

    def _looked_at(self, objective: str) -> Iterator[str | None]:
        for spec in CHECK_SPECS:
            if spec.metric is not None and spec.objective == objective:
                yield self.jobs.description.logged_as.get(spec.metric)

    def without_noise(self, changed: Changes) -> Changes:
        """Leave out what differs where nothing has changed, such as times."""
        again = self.jobs.observations(self.job) or ()
        self.jobs.noise.update(moved_numbers(self.before, again))
        return {name: pair for name, pair in changed.items() if name not in self.jobs.noise}

    def without_counts(self, changed: Changes) -> Changes:
        """Leave out what no value of a token or sample changes."""
        others = with_other_values(self.job)
        run = self.jobs.remembered((self.job, "with other values"), others)
        if not isinstance(run, Ran):
            return changed
        dtype = self.jobs.description.dtype
        moved = changed_numbers(self.job, self.before, run.observations, dtype)
        counts = logged_names(self.before) - moved.keys()
        return {name: pair for name, pair in changed.items() if name not in counts}
