"""Judges a step after a change that must not matter, by comparing it with the unchanged step.

The gradient is compared with the reference, as in every step. Logged numbers need no formula: each
must keep its value. Numbers that have a check of their own are left out. A column that must be
constant is checked otherwise: it is given so that it could receive a gradient, which must stay 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.job import Column, Place
from adapters.contract.objective import FROM_REWARDS, OF_SAMPLES
from conformance.expected.estimators import estimator_conventions
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Check, Verdict
from conformance.judging.comparison import (
    changed_gradient,
    changed_numbers,
    differing_gradients,
    first_of,
)
from conformance.judging.outcome import judge_outcome
from conformance.judging.weights import Judgement, Trained, advice, mismatch, not_run, unjudged
from conformance.laws.law import AGAIN, LAWS, with_other_values
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import TokenSet

if TYPE_CHECKING:
    from collections.abc import Set

    from adapters.contract import Description, Job, Observation
    from adapters.contract.job import Poison
    from adapters.contract.objective import Objective
    from conformance.judging.comparison import Changes
    from conformance.judging.further_jobs import FurtherJobs
    from conformance.judging.weights import Outcome
    from conformance.laws.law import Law
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import MatrixCell

RETAINED = "backward through the graph a second time"
"""Torch's error where several micro-batches backpropagate through one tensor's graph."""


def judge_law(cell: MatrixCell, after: Outcome, jobs: FurtherJobs) -> Judgement:
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
    # The changed step's expected weights differ from those of its case, so they are not compared.
    judged = replace(judge_outcome(cell, after, jobs), expected=())
    is_right = judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)
    if not is_right and _is_right_before(cell, before, jobs):
        return judged
    if not law.is_invariance:
        words = "without the change the gradient is wrong as well"
        return judged if is_right else unjudged(Verdict.UNSUPPORTED, words)
    if not isinstance(after, Ran):
        return judged
    old, new = jobs.trained(job, before), jobs.trained(cell.job, after)
    if is_right and (found := _judge_gradient(law, old, new, judged.tolerance or 0.0)):
        return found
    unknown = _unknown(cell, old, new, jobs)
    found = _judge_changed(law, unknown, description.rules.get(f"laws.{law.name}"))
    return replace(found, clues=judged.clues if is_right else None)


def judge_attached(job: Job, outcome: Outcome, description: Description) -> Judgement:
    """Judge whether any gradient reached the attached column; exactly 0 is right.

    Micro-batches share the column's graph, so the error `RETAINED` shows that a gradient reached
    it. Any other crash shows only that the framework does not accept a column with a gradient.
    """
    column = job.attached
    if isinstance(outcome, Ran):
        found = [one.attached_gradient for one in outcome.observations]
        reached = [one for one in found if one is not None]
        if not reached:
            return unjudged(Verdict.UNSUPPORTED, f"{column} is given as plain numbers")
        gradients = np.concatenate(reached)
        if not gradients.any():
            return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
        largest = float(np.nanmax(np.abs(gradients)))
        words = f"{np.count_nonzero(gradients)} entries have a gradient, the largest {largest:.4g}"
    elif outcome.verdict != Verdict.CRASHED:
        return not_run(outcome)
    elif RETAINED not in outcome.message:
        words = f"{column} cannot be given with a gradient: {outcome.message}"
        return unjudged(Verdict.NOT_DRIVEN, words)
    else:
        words = "the backward passes of several micro-batches go through it"
    stated = description.rules[f"no_gradient.{column}"]
    return mismatch(
        "gradient_of_constants",
        f"a gradient flows through {column}, which should be constant: {words}; see {stated}",
    )


def judge_same(spec: CheckSpec, job: Job, after: Outcome, jobs: FurtherJobs) -> Judgement:
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
        return _judge_crash(law, after, _rule(spec, description))
    if not isinstance(after, Ran):
        return not_run(after)
    old, new = jobs.trained(plain, before), jobs.trained(job, after)
    if law.poison:
        return _judge_poison(spec, law, old, new, jobs)
    return replace(_judge_defaults(spec, law, old, new), behaviour=jobs.behaviour(new))


def _rule(spec: CheckSpec, description: Description) -> str | None:
    """The place where the framework states that a law holds; None if it states this nowhere."""
    if spec.check is Check.DEFAULTS:
        places = (one.documented.where for one in description.defaults[spec.objective])
        return ", ".join(dict.fromkeys(places))
    of_all = "poison.logged" if spec.is_logged else "poison"
    return description.rules.get(spec.slug, description.rules.get(of_all))


def _judge_gradient(
    law: Law, before: Trained, after: Trained, tolerance: float
) -> Judgement | None:
    """Advice if the change moves a token's gradient, though both steps conform to conventions."""
    pair = differing_gradients(before, after, tolerance)
    if pair is None:
        return None
    one, other = pair
    ratios = other[one != 0] / one[one != 0]
    explanation = (
        f"by the framework's conventions a token's gradient is {ratios.min():.4g} to"
        f" {ratios.max():.4g} times what it was when {law.says}"
    )
    return advice(Diagnosis(name=law.mistake, explanation=explanation))


def _judge_defaults(spec: CheckSpec, law: Law, before: Trained, after: Trained) -> Judgement:
    """Judge whether options have their documented defaults, in a configuration and in a step."""
    description = after.description
    defaults = description.defaults[spec.objective]
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
    return _judge_changed(law, changed_gradient(before, after), _rule(spec, description))


def _judge_poison(
    spec: CheckSpec, law: Law, before: Trained, after: Trained, jobs: FurtherJobs
) -> Judgement:
    """Judge a poisoned job by comparing it with the job without poison.

    If a finite poison value matters, no mask was applied: a mask of 0 would have removed the value.
    """
    assert law.poison is not None
    if not any(one.reads_poison for one in after.observations):
        return unjudged(Verdict.UNSUPPORTED, f"the adapter gives no {law.poison.column}")
    changed = _changed_by_poison(spec, before, after, jobs)
    if changed and law.poison.place is not Place.CLIPPED:
        finite = replace(law.poison, values=(next(filter(math.isfinite, law.poison.values)),))
        if alone := jobs.train(replace(after.job, poison=finite)):
            read = _changed_by_poison(
                spec, before, replace(after, observations=alone.observations), jobs
            )
            if read and all(math.isfinite(value) for _, value in read.values()):
                law = replace(law, mistake="masked_values_read")
    return _judge_changed(law, changed, _rule(spec, jobs.description))


def _changed_by_poison(
    spec: CheckSpec, before: Trained, after: Trained, jobs: FurtherJobs
) -> Changes:
    """The gradients or the logged numbers that poison changes.

    Metrics of samples are left out, as a reward may depend on every column of its sample.
    """
    if not spec.is_logged:
        return changed_gradient(before, after)
    unnamed = jobs.steady_numbers(before.job) - jobs.numbers_of_rewards(before.job)
    unnamed -= {*jobs.description.logged_as.values()}
    comparable = (
        replace(one, observations=[_comparable(rank, unnamed) for rank in one.observations])
        for one in (before, after)
    )
    return changed_numbers(*comparable)


def _comparable(observation: Observation, unnamed: Set[str]) -> Observation:
    """An observation that logs the unnamed numbers and all metrics of tokens, with NaN for None."""
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


def changed_by_law(cell: MatrixCell, jobs: FurtherJobs) -> Changes:
    """The logged numbers that differ before and after a law's change, if both steps run."""
    job = cell.job_before
    before, after = jobs.remembered(job), jobs.run(cell.job)
    if isinstance(before, Ran) and isinstance(after, Ran):
        return _unknown(cell, jobs.trained(job, before), jobs.trained(cell.job, after), jobs)
    return {}


def _unknown(cell: MatrixCell, before: Trained, after: Trained, jobs: FurtherJobs) -> Changes:
    """The logged numbers without a formula that change under the law but not in a rerun."""
    law = cell.spec.law
    assert law is not None
    by_formula = {
        jobs.description.logged_as.get(spec.metric)
        for spec in CHECK_SPECS
        if spec.metric and spec.objective is cell.spec.objective
    }
    changed = changed_numbers(before, after)
    steady = jobs.steady_numbers(before.job) - by_formula
    if law.adds_rewards:
        steady -= jobs.numbers_of_rewards(before.job)
    unknown = {name: pair for name, pair in changed.items() if name in steady}
    if unknown and law is not AGAIN and (again := jobs.train(before.job)):
        # A number that also differs between two runs without the change does not break the law.
        moved = changed_numbers(before, again)
        unknown = {name: pair for name, pair in unknown.items() if name not in moved}
    return unknown


def _is_right_before(cell: MatrixCell, before: Ran, jobs: FurtherJobs) -> bool:
    plain = replace(cell, layout=cell.job_before.layout, spec=replace(cell.spec, law=None))
    return judge_outcome(plain, before, jobs).verdict is Verdict.CONFORMS


def _judge_changed(law: Law, changed: Changes, stated: str | None) -> Judgement:
    """Judge a law's effect: a mismatch if the framework states the law as a rule, else advice."""
    if not changed:
        return Judgement(verdict=Verdict.CONFORMS, error=0.0)
    said = [
        f"`{name}` changes from {one:.6g} to {other:.6g}"
        for name, (one, other) in sorted(changed.items())
    ]
    return _broken(law, first_of(said), stated)


def _judge_crash(law: Law, crash: Crashed, stated: str | None) -> Judgement:
    """Judge a step that crashes only after the change."""
    if stated is not None:
        return not_run(crash)
    judged = _broken(replace(law, mistake="masked_values_crash"), "the step crashes", stated)
    return replace(judged, message=crash.message, place=crash.place)


def _broken(law: Law, effect: str, stated: str | None) -> Judgement:
    source = f"see {stated}" if stated else "no document of the framework says that nothing changes"
    broken = mismatch(law.mistake, f"{effect} when {law.says}; {source}")
    return broken if stated else replace(broken, verdict=Verdict.ADVICE)
