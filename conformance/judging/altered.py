"""Judges steps with a column that is poisoned at masked tokens, or that has a gradient.

A poisoned step must give the same as without poison, right or wrong: other mistakes are judged in
steps without poison.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.job import Place
from adapters.contract.objective import OF_SAMPLES
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.laws import first_of
from conformance.judging.weights import Judgement, final_weights, mismatch, unjudged
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.plan.checks import CheckSpec
    from conformance.ranks.pool import Crashed

    Numbers = dict[str, NDArray[np.float64]]
    Run = Callable[[Job], Sequence[Observation] | None]
    """The observations of a job, None if it did not run."""


def judge_poisoned(
    spec: CheckSpec,
    job: Job,
    poisoned: Sequence[Observation],
    plain: Sequence[Observation],
    description: Description,
    run: Run,
    steady: frozenset[str] = frozenset(),
) -> Judgement:
    """Judge a poisoned job by ``plain``, the observations of the same job without poison.

    ``steady`` are the names of further logged numbers, for which there is no formula. A difference
    breaks a rule if the framework states one, and is advice otherwise. To name the poisons that
    matter, the job is run again with each of them alone. A finite poison that matters was read, as
    a mask of 0 would have multiplied it to 0.
    """
    assert job.poison is not None
    if not any(one.reads_poison for one in poisoned):
        return unjudged(Verdict.UNSUPPORTED, f"the adapter gives no {job.poison.column}")
    numbers = partial(_logged, steady=steady) if spec.is_logged else _gradients
    tolerance = weight_bound(description.dtype)
    right = numbers(job, plain, description)
    changed = _changed(numbers(job, poisoned, description), right, tolerance)
    if not changed:
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=tolerance)
    is_rule = _stated(spec, description) is not None
    alone, finite = {}, next(filter(np.isfinite, job.poison.values))
    for value in job.poison.values if is_rule else (finite,):
        seen = run(replace(job, poison=replace(job.poison, values=(value,))))
        if seen is not None and (
            of_value := _changed(numbers(job, seen, description), right, tolerance)
        ):
            alone[value] = np.concatenate([*of_value.values()])
    is_read = finite in alone and bool(np.isfinite(alone[finite]).all())
    poisons = ", ".join(f"{value:g}" for value in (alone if is_rule else job.poison.values))
    explanation = f"{poisons} in {job.poison}: {first_of(changed)} differ"
    name = "masked_values_read" if is_read else "masked_values_multiplied"
    if job.poison.place is Place.CLIPPED:
        name = "ratios_overflow"
    return _rule_judgement(spec, Diagnosis(name=name, explanation=explanation), description)


def judge_poisoned_crash(spec: CheckSpec, crash: Crashed, description: Description) -> Judgement:
    """Judge a job that crashes only if it is poisoned."""
    diagnosis = Diagnosis(name="masked_values_crash", explanation="the step crashes")
    judged = _rule_judgement(spec, diagnosis, description)
    if judged.verdict is Verdict.MISMATCH:
        return unjudged(Verdict.CRASHED, crash.message, crash.place)
    return replace(judged, message=crash.message, place=crash.place)


RETAINED = "backward through the graph a second time"
"""Torch's error where micro-batches share the graph of a tensor that is not their model's."""


def judge_attached(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge whether any gradient reached the attached column; exactly 0 is right."""
    reached = [one.attached_gradient for one in observations if one.attached_gradient is not None]
    if not reached:
        return unjudged(Verdict.UNSUPPORTED, f"{job.attached} is given as plain numbers")
    gradients = np.concatenate(reached)
    if not gradients.any():
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    largest = float(np.nanmax(np.abs(gradients)))
    return _gradient_mismatch(
        job, f"{np.count_nonzero(gradients)} of its values get up to {largest:.4g}", description
    )


def judge_attached_crash(job: Job, crash: Crashed, description: Description) -> Judgement:
    """Judge a job that crashes if a column has a gradient.

    A graph that several micro-batches share was used, so a gradient reached the column. Any other
    crash shows only that the column cannot be given with a gradient.
    """
    if RETAINED not in crash.message:
        words = f"{job.attached} cannot be given with a gradient: {crash.message}"
        return unjudged(Verdict.NOT_DRIVEN, words)
    return _gradient_mismatch(job, "several micro-batches go back through it", description)


def _gradient_mismatch(job: Job, words: str, description: Description) -> Judgement:
    stated = description.rules[f"no_gradient.{job.attached}"]
    return mismatch(
        "gradient_of_constants",
        f"a gradient flows through {job.attached} that still have one: {words}; see {stated}",
    )


def _rule_judgement(spec: CheckSpec, diagnosis: Diagnosis, description: Description) -> Judgement:
    """A mismatch if the framework states the rule, or makes such values itself, else advice."""
    stated = _stated(spec, description)
    words = f"; see {stated}" if stated else "; no document of the framework says that they do not"
    return Judgement(
        verdict=Verdict.ADVICE if stated is None else Verdict.MISMATCH,
        diagnosis=diagnosis.model_copy(update={"explanation": f"{diagnosis.explanation}{words}"}),
    )


def _stated(spec: CheckSpec, description: Description) -> str | None:
    """The place where the framework states the rule, for a check's column or for all columns."""
    of_all = "poison.logged" if spec.is_logged else "poison"
    return description.rules.get(spec.slug, description.rules.get(of_all))


def _changed(found: Numbers, right: Numbers, tolerance: float) -> Numbers:
    """The numbers that differ, by name."""
    differ = {
        name: ~np.isclose(values, right[name], rtol=tolerance, atol=0.0, equal_nan=True)
        for name, values in found.items()
    }
    return {name: found[name][where] for name, where in differ.items() if where.any()}


def _gradients(job: Job, observations: Sequence[Observation], description: Description) -> Numbers:
    """The weights of all steps on all ranks: [ranks · tokens]."""
    of_steps = [
        final_weights(observations, index, job, description.conventions)
        for index in range(len(job.steps))
    ]
    return {"gradients": np.concatenate([weights for ranks in of_steps for weights in ranks])}


def _logged(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    steady: frozenset[str],
) -> Numbers:
    """The logged metrics of tokens, NaN where a rank logs nothing: [ranks · steps].

    Metrics of samples are left out, as a reward may depend on every column of its sample.
    """
    found: dict[str, list[float | None]] = defaultdict(list)
    for one in observations:
        for metric, values in one.reported.items():
            if metric not in OF_SAMPLES:
                found[f"logged {metric}"] += values
        for name in sorted(steady.difference(description.logged_as.values()) & one.logged.keys()):
            found[f"`{name}`"] += one.logged[name]
    return {name: np.array(values, float) for name, values in found.items()}
