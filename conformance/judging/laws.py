"""Judges a step after a change that must not matter, by comparing it with the unchanged step.

The gradient is compared with the reference, as in every step. Logged numbers need no formula: each
must keep its value. Numbers that have a check of their own are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import LARGEST
from conformance.findings.finding import Behaviour, Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, advice, mismatch, not_run, observed_steps
from reference.rounding import TERM_OPERATIONS, reported_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.laws.law import Law
    from conformance.ranks.pool import Crashed

    Gradients = NDArray[np.float64]
    Run = tuple[Job, Sequence[Observation]]
    Changes = dict[str, tuple[float, float]]
    """For each name of a number that a change alters, its values before and after the change."""


MOST_NAMED = 3
"""The most numbers that an explanation names."""


def judge_gradient(
    law: Law, before: Run, after: Run, description: Description, tolerance: float
) -> Judgement | None:
    """Advice if the change moves a token's gradient, though both steps conform to conventions."""
    pair = differing_gradients(before, after, description, tolerance)
    if pair is None:
        return None
    one, other = pair
    ratios = other[one != 0] / one[one != 0]
    explanation = (
        f"by the framework's conventions a token's gradient is {ratios.min():.4g} to"
        f" {ratios.max():.4g} times what it was when {law.says}"
    )
    return advice(Diagnosis(name=law.mistake, explanation=explanation))


def changed_gradient(before: Run, after: Run, description: Description) -> Changes:
    """The gradient, before and after, of the first token whose gradient differs."""
    tolerance = weight_bound(description.dtype)
    pair = differing_gradients(before, after, description, tolerance)
    if pair is None:
        return {}
    differs = ~np.isclose(*pair, rtol=tolerance, atol=0.0, equal_nan=True)
    one, other = (gradients[differs][0] for gradients in pair)
    return {"gradient": (one, other)}


def differing_gradients(
    before: Run, after: Run, description: Description, tolerance: float
) -> tuple[Gradients, Gradients] | None:
    """The two steps' gradients, by rank, of the tokens that both have; None if they are equal."""
    old, new = (_gradient_by_name(*run, description) for run in (before, after))
    common = sorted(old.keys() & new.keys())
    one, other = (np.array([of[name] for name in common]) for of in (old, new))
    return None if is_same_gradient(one, other, tolerance) else (one, other)


def is_same_gradient(one: Gradients, other: Gradients, tolerance: float) -> bool:
    """Whether two gradients are equal; each may be off by ``tolerance`` times the largest one."""
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return np.allclose(one, other, rtol=0.0, atol=2 * tolerance * largest, equal_nan=True)


def _gradient_by_name(
    job: Job, observations: Sequence[Observation], description: Description
) -> dict[tuple[int, int], float]:
    """The gradient by rank and token name, summed over all steps."""
    names = np.concatenate(ProbedBatch(job.steps).names).tolist()
    found: defaultdict[tuple[int, int], float] = defaultdict(float)
    of_steps = [of_ranks for _, _, of_ranks in observed_steps(job, observations, description)]
    for rank, weights in enumerate(zip(*of_steps, strict=True)):
        for name, weight in zip(names, np.concatenate(weights).tolist(), strict=True):
            found[rank, name] += weight  # a masked and an active token may share a name
    return found


def changed_numbers(
    job: Job, before: Sequence[Observation], after: Sequence[Observation], dtype: str
) -> Changes:
    """The values before and after of logged numbers that differ, by the framework's names."""
    tokens = sum(len(step.mask) for step in job.steps)
    found: Changes = {}
    for name, one, other in _pairs(before, after):
        if not is_same(one, other, tokens, dtype):
            found.setdefault(name, (one, other))
    return found


def is_same(one: float, other: float, tokens: int, dtype: str) -> bool:
    """Whether a number that two runs log is the same up to rounding.

    A number without a formula is assumed to be a mean over tokens of values as large as a batch's
    values can be. The bound is twice that of such a sum, relative to the largest value.
    """
    bound = 2 * reported_bound(tokens, dtype, TERM_OPERATIONS)
    size = max(LARGEST, abs(one), abs(other))
    return bool(np.isclose(one, other, rtol=0.0, atol=bound * size, equal_nan=True))


def steady_numbers(job: Job, runs: Sequence[Sequence[Observation]], dtype: str) -> frozenset[str]:
    """The names of logged numbers that depend on the values of a batch and on nothing else.

    ``runs`` are a job, the job with other values, and the job again. Times differ in every run, and
    counts in none, so both are left out.
    """
    first, with_other_values, again = runs
    moved = changed_numbers(job, first, with_other_values, dtype).keys()
    return frozenset(moved) - {name for name, one, other in _pairs(first, again) if one != other}


def _pairs(
    before: Sequence[Observation], after: Sequence[Observation]
) -> Iterator[tuple[str, float, float]]:
    """Yield the name and both values of each number that both runs log."""
    old, new = _logged(before), _logged(after)
    for name in sorted(old.keys() & new.keys()):
        yield from ((name, one, other) for one, other in zip(old[name], new[name], strict=False))


def _logged(run: Sequence[Observation]) -> dict[str, list[float]]:
    """The numbers that the ranks log, by name; for each name, one rank after the other."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in run:
        for name, numbers in one.logged.items():
            found[name] += [number for number in numbers if number is not None]
    return found


def judge_changed(law: Law, changed: Changes, stated: str | None) -> Judgement:
    """Judge a law's effect: a mismatch if the framework states the law as a rule, else advice."""
    if not changed:
        return Judgement(verdict=Verdict.CONFORMS, error=0.0)
    said = [
        f"`{name}` changes from {one:.6g} to {other:.6g}"
        for name, (one, other) in sorted(changed.items())
    ]
    return _broken(law, first_of(said), stated)


def judge_crash(law: Law, crash: Crashed, stated: str | None) -> Judgement:
    """Judge a step that crashes only after the change."""
    if stated is not None:
        return not_run(crash)
    judged = _broken(replace(law, mistake="masked_values_crash"), "the step crashes", stated)
    return replace(judged, message=crash.message, place=crash.place)


def _broken(law: Law, effect: str, stated: str | None) -> Judgement:
    source = f"see {stated}" if stated else "no document of the framework says that nothing changes"
    broken = mismatch(law.mistake, f"{effect} when {law.says}; {source}")
    return broken if stated else replace(broken, verdict=Verdict.ADVICE)


def first_of(said: Iterable[str]) -> str:
    """The first few statements, with the number of the others."""
    named = [*said]
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return " and ".join([*named[:MOST_NAMED], *more])


def behaviour(
    job: Job, observations: Sequence[Observation], description: Description, names: Iterable[str]
) -> Behaviour:
    """The result of a job: its gradients, and the first value logged under each name."""
    gradients = []
    for _, _, (weights, *_) in observed_steps(job, observations, description):
        factors = np.cos(1.0 + np.arange(len(weights)))
        gradients.append((_rounded(np.abs(weights).sum()), _rounded(weights @ factors)))
    numbers = _logged(observations)
    logged = {name: _rounded(numbers[name][0]) for name in sorted(names) if numbers.get(name)}
    return Behaviour(gradients=tuple(gradients), logged=logged)


def _rounded(value: float) -> float | None:
    """A number rounded to six digits, as float32 has no more; None if it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
