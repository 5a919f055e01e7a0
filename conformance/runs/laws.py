"""Runs the unchanged step that a law compares with the changed step, and judges both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.job import Column, Place
from adapters.contract.objective import FROM_REWARDS, OF_SAMPLES
from conformance.expected.estimators import estimator_conventions
from conformance.findings.verdict import Check, Verdict
from conformance.judging.attached import judge_attached
from conformance.judging.laws import (
    changed_gradient,
    changed_numbers,
    judge_changed,
    judge_crash,
    judge_gradient,
)
from conformance.judging.weights import mismatch, not_run, unjudged
from conformance.laws.law import AGAIN, LAWS, with_other_values
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import TokenSet

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from adapters.contract import Description, Job, Observation
    from adapters.contract.job import Poison
    from adapters.contract.objective import Objective
    from conformance.judging.laws import Changes, Run
    from conformance.judging.weights import Judgement
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.runs.jobs import SharedJobs

    Outcome = Ran | Declined | Crashed
    Runs = tuple[Run, Run]
    OfGradient = Callable[[MatrixCell, Outcome], Judgement]


def judge_law(
    cell: MatrixCell, after: Outcome, jobs: SharedJobs, of_gradient: OfGradient
) -> Judgement:
    """Judge whether a changed step has the right gradient, and logs the same numbers as before.

    A gradient that is wrong before the change as well does not break the law.
    """
    law, job, description = cell.spec.law, cell.job_before, jobs.description
    assert law is not None
    if law.attached:
        return judge_attached(cell.job, after, description)
    if cell.spec.check is not Check.LAWS:
        return judge_same(cell.spec, cell.job, after, jobs)
    before = jobs.remembered(job)
    if not isinstance(before, Ran):
        return unjudged(Verdict.UNSUPPORTED, f"without the change: {before.message}")
    if law is AGAIN:
        jobs.run(with_other_values(LAWS["longer_prompt"].after(job)))
        after = jobs.run(job)
    # The changed step's expected weights are not those of its case, so they are not compared.
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
    if is_right and (found := judge_gradient(law, *runs, description, judged.tolerance or 0.0)):
        return found
    unknown = _unknown(cell, before, after, jobs)
    found = judge_changed(law, unknown, description.rules.get(f"laws.{law.name}"))
    return replace(found, clues=judged.clues if is_right else None)


def judge_same(spec: CheckSpec, job: Job, after: Outcome, jobs: SharedJobs) -> Judgement:
    """Judge whether a job gives the same result with and without the change, right or wrong.

    A framework may refuse poison with an error of its own, but must train its documented defaults.
    """
    law, description = spec.law, jobs.description
    assert law is not None
    if law.poison and _counts(law.poison, job.objective, description):
        return unjudged(Verdict.UNSUPPORTED, f"by its conventions the {law.poison} count")
    plain = law.before(job)
    before = jobs.remembered(plain)
    if not isinstance(before, Ran):
        words = f"without the change: {before.message}"
        return unjudged(Verdict.UNSUPPORTED, words) if law.poison else not_run(before)
    if isinstance(after, Crashed) and after.verdict is Verdict.CRASHED:
        return judge_crash(law, after, _rule(spec, description))
    if not isinstance(after, Ran):
        return not_run(after)
    runs = (plain, before.observations), (job, after.observations)
    if law.poison:
        return _judge_poison(spec, runs, jobs)
    judged = _judge_defaults(spec, runs, description)
    return replace(judged, behaviour=jobs.behaviour(job, after.observations))


def _rule(spec: CheckSpec, description: Description) -> str | None:
    """The place where the framework states that a law holds; None if it states this nowhere."""
    if spec.check is Check.DEFAULTS:
        places = (one.documented.where for one in description.defaults[spec.objective])
        return ", ".join(dict.fromkeys(places))
    of_all = "poison.logged" if spec.is_logged else "poison"
    return description.rules.get(spec.slug, description.rules.get(of_all))


def _judge_defaults(spec: CheckSpec, runs: Runs, description: Description) -> Judgement:
    """Judge whether options have their documented defaults, in a configuration and in a step."""
    law, defaults = spec.law, description.defaults[spec.objective]
    assert law is not None
    others = [
        f"`{one.option}` is {one.actual} by default instead of {one.documented.value}; see"
        f" {one.documented.where}"
        for one in defaults
        if one.actual != one.documented.value
    ]
    if others:
        return mismatch(law.mistake, "; ".join(others))
    names = ", ".join(f"`{one.option}`" for one in defaults)
    law = replace(law, says=f"the documented default of {names} is left out")
    return judge_changed(law, changed_gradient(*runs, description), _rule(spec, description))


def _judge_poison(spec: CheckSpec, runs: Runs, jobs: SharedJobs) -> Judgement:
    """Judge a poisoned job by comparing it with the job without poison.

    If a finite poison value matters, no mask was applied: a mask of 0 would have removed the value.
    """
    (before, (job, observations)), law = runs, spec.law
    assert law is not None
    assert law.poison is not None
    if not any(one.reads_poison for one in observations):
        return unjudged(Verdict.UNSUPPORTED, f"the adapter gives no {law.poison.column}")
    changed = _changed_by_poison(spec, runs, jobs)
    if changed and law.poison.place is not Place.CLIPPED:
        finite = replace(law.poison, values=(next(filter(math.isfinite, law.poison.values)),))
        if alone := jobs.observations(replace(job, poison=finite)):
            read = _changed_by_poison(spec, (before, (job, alone)), jobs)
            if read and all(math.isfinite(value) for _, value in read.values()):
                law = replace(law, mistake="masked_values_read")
    return judge_changed(law, changed, _rule(spec, jobs.description))


def _changed_by_poison(spec: CheckSpec, runs: Runs, jobs: SharedJobs) -> Changes:
    """The gradients or the logged numbers that poison changes.

    Metrics of samples are left out, as a reward may depend on every column of its sample.
    """
    description, ((plain, _), _) = jobs.description, runs
    if not spec.is_logged:
        return changed_gradient(*runs, description)
    unnamed = jobs.steady_numbers(plain) - jobs.numbers_of_rewards(plain)
    unnamed -= {*description.logged_as.values()}
    old, new = ([_comparable(one, unnamed) for one in seen] for _, seen in runs)
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
    """The logged numbers that differ before and after a law's change, if both steps run."""
    job = cell.job_before
    before, after = jobs.remembered(job), jobs.run(cell.job)
    if isinstance(before, Ran) and isinstance(after, Ran):
        return _unknown(cell, before, after, jobs)
    return {}


def _unknown(cell: MatrixCell, before: Ran, after: Ran, jobs: SharedJobs) -> Changes:
    """The logged numbers without a formula that the law changes, and that a rerun does not."""
    law, job, description = cell.spec.law, cell.job_before, jobs.description
    assert law is not None
    changed = changed_numbers(job, before.observations, after.observations, description.dtype)
    by_formula = {
        description.logged_as.get(spec.metric)
        for spec in CHECK_SPECS
        if spec.metric and spec.objective is cell.spec.objective
    }
    steady = jobs.steady_numbers(job) - by_formula
    if law.adds_rewards:
        steady -= jobs.numbers_of_rewards(job)
    unknown = {name: pair for name, pair in changed.items() if name in steady}
    if unknown and law is not AGAIN:
        # A number that also differs between two runs without the change does not break the law.
        again = jobs.observations(job) or ()
        moved = changed_numbers(job, before.observations, again, description.dtype)
        unknown = {name: pair for name, pair in unknown.items() if name not in moved}
    return unknown


def _is_right_before(cell: MatrixCell, before: Ran, of_gradient: OfGradient) -> bool:
    plain = replace(cell, layout=cell.job_before.layout, spec=replace(cell.spec, law=None))
    return of_gradient(plain, before).verdict is Verdict.CONFORMS
