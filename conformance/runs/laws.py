"""Runs what a law needs besides the changed step, and judges both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.batch.formulas import estimator_conventions
from adapters.contract.job import Column, Place
from adapters.contract.objective import FROM_REWARDS, OF_SAMPLES
from conformance.findings.verdict import Verdict
from conformance.judging.laws import (
    changed_gradient,
    changed_numbers,
    judge_changed,
    judge_crash,
    judge_gradient,
)
from conformance.judging.weights import unjudged
from conformance.laws.law import LAWS, with_other_values
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import TokenSet
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    from adapters.contract import Description, Job, Observation
    from adapters.contract.job import Poison
    from adapters.contract.objective import Objective
    from conformance.judging.laws import Changes
    from conformance.judging.weights import Judgement
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
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
    if law.poison is not None:
        return judge_poison(cell.spec, cell.job, after, jobs)
    before = jobs.remembered(job, job)
    if not isinstance(before, Ran):
        return unjudged(Verdict.UNSUPPORTED, f"without the change: {before.message}")
    if law.is_repetition:
        jobs.run(with_other_values(LAWS["longer_prompt"].after(job)))
        after = jobs.run(job)
    # The case has other expected weights than the changed step.
    judged = replace(of_gradient(cell, after), expected=())
    is_right = judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)
    if not is_right and _is_right_before(cell, before, of_gradient):
        return judged
    if not law.is_invariance:
        words = "without the change the gradient is wrong as well"
        return judged if is_right else unjudged(Verdict.UNSUPPORTED, words)
    if not isinstance(after, Ran):
        return judged
    runs = (job, before.observations), (cell.job, after.observations)
    tolerance = judged.tolerance or 0.0
    if is_right and (advice := judge_gradient(law, *runs, jobs.description, tolerance)):
        return advice
    changed = changed_numbers(*runs[0], after.observations, jobs.description.dtype)
    return replace(
        judge_changed(
            law,
            _unknown(changed, cell, before, jobs),
            jobs.description.rules.get(f"laws.{law.name}"),
        ),
        clues=judged.clues if is_right else None,
    )


def judge_poison(spec: CheckSpec, job: Job, after: Outcome, jobs: SharedJobs) -> Judgement:
    """Whether a poisoned job gives what it gives without, right or wrong.

    A framework may refuse poison in an error of its own. A finite value that matters was read, as
    a mask of 0 would have multiplied it to 0.
    """
    law, description, plain = spec.law, jobs.description, replace(job, poison=None)
    assert law is not None
    assert law.poison is not None
    if _counts(law.poison, job.objective, description):
        return unjudged(Verdict.UNSUPPORTED, f"by its conventions the {law.poison} count")
    before = jobs.remembered(plain, plain)
    if not isinstance(before, Ran):
        return unjudged(Verdict.UNSUPPORTED, f"without poison: {before.message}")
    if not isinstance(after, Ran) and Verdict(after.verdict) is not Verdict.CRASHED:
        return unjudged(Verdict(after.verdict), after.message)
    of_all = "poison.logged" if spec.is_logged else "poison"
    stated = description.rules.get(spec.slug, description.rules.get(of_all))
    if isinstance(after, Crashed):
        return judge_crash(law, after, stated)
    assert isinstance(after, Ran)
    if not any(one.reads_poison for one in after.observations):
        return unjudged(Verdict.UNSUPPORTED, f"the adapter gives no {law.poison.column}")
    changed = _changed_by_poison(spec, plain, (before, after), jobs)
    if changed and law.poison.place is not Place.CLIPPED:
        finite = replace(law.poison, values=(next(filter(math.isfinite, law.poison.values)),))
        alone = jobs.run(replace(job, poison=finite))
        if isinstance(alone, Ran):
            read = _changed_by_poison(spec, plain, (before, alone), jobs)
            if read and all(math.isfinite(value) for _, value in read.values()):
                law = replace(law, mistake="masked_values_read")
    return judge_changed(law, changed, stated)


def _changed_by_poison(
    spec: CheckSpec, plain: Job, runs: tuple[Ran, Ran], jobs: SharedJobs
) -> Changes:
    """The gradients or the logged numbers that poison changes.

    Metrics of samples are left out, as a reward may depend on every column of its sample.
    """
    description = jobs.description
    if not spec.is_logged:
        before, after = ((plain, run.observations) for run in runs)
        return changed_gradient(before, after, description, weight_bound(description.dtype))
    unnamed = jobs.steady_numbers(plain) - jobs.numbers_of_rewards(plain)
    unnamed -= {*description.logged_as.values()}
    old, new = ([_comparable(one, unnamed) for one in run.observations] for run in runs)
    return changed_numbers(plain, old, new, description.dtype)


def _comparable(observation: Observation, unnamed: Set[str]) -> Observation:
    """An observation that logs the unnamed numbers and all metrics of tokens, NaN for None."""
    logged = {name: values for name, values in observation.logged.items() if name in unnamed}
    for metric, values in observation.reported.items():
        if metric not in OF_SAMPLES:
            logged[metric] = tuple(math.nan if one is None else one for one in values)
    return replace(observation, logged=logged)


def _counts(poison: Poison, objective: Objective, description: Description) -> bool:
    """Whether masked tokens of a poisoned column count, by the conventions of an estimator."""
    if poison.place is not Place.MASKED or objective not in FROM_REWARDS:
        return False
    declared = estimator_conventions(objective, description.conventions)
    if poison.column is Column.VALUES:
        return TokenSet.ACTIVE not in (declared.valued, declared.transitions)
    return declared.penalised is not TokenSet.ACTIVE


def changed_by_law(cell: MatrixCell, jobs: SharedJobs) -> Changes:
    """The logged numbers that a law's change changes, if both steps run."""
    job = cell.job_before
    before, after = jobs.remembered(job, job), jobs.run(cell.job)
    if not (isinstance(before, Ran) and isinstance(after, Ran)):
        return {}
    runs = before.observations, after.observations
    return _unknown(changed_numbers(job, *runs, jobs.description.dtype), cell, before, jobs)


def _unknown(changed: Changes, cell: MatrixCell, before: Ran, jobs: SharedJobs) -> Changes:
    """The numbers that no other check looks at, and that nothing but the law changes."""
    law, job = cell.spec.law, cell.job_before
    assert law is not None
    steady = jobs.steady_numbers(job) - {*_looked_at(cell.spec.objective, jobs.description)}
    if law.adds_rewards:
        steady -= jobs.numbers_of_rewards(job)
    unknown = {name: pair for name, pair in changed.items() if name in steady}
    if unknown and not law.is_repetition:
        # What changes without the change as well is not the law's.
        again = jobs.observations(job) or ()
        moved = changed_numbers(job, before.observations, again, jobs.description.dtype)
        unknown = {name: pair for name, pair in unknown.items() if name not in moved}
    return unknown


def _looked_at(objective: Objective, description: Description) -> Iterator[str]:
    """Yield the names of numbers that another check looks at, by a formula."""
    for spec in CHECK_SPECS:
        name = description.logged_as.get(spec.metric) if spec.metric else None
        if name is not None and spec.objective is objective:
            yield name


def _is_right_before(cell: MatrixCell, before: Ran, of_gradient: OfGradient) -> bool:
    plain = replace(cell, layout=cell.job_before.layout, spec=replace(cell.spec, law=None))
    return of_gradient(plain, before).verdict is Verdict.CONFORMS
