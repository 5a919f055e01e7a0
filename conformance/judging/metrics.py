"""Judges the metrics that a framework logs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric, Objective
from conformance.expected import loss_terms
from conformance.expected.step_context import ExpectedNumber
from conformance.explain.consistent import Showing
from conformance.explain.diagnosis import diagnose_reported, left_out, likeliest
from conformance.explain.evidence import ReportedEvidence
from conformance.explain.shared_mistakes import diagnose_shared_mistake
from conformance.findings.agreement import agreement
from conformance.findings.finding import Diagnosis, Logged
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, judge_showings, mismatch, step_context
from reference.rounding import TERM_OPERATIONS, ratio_bound, reported_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.expected.term import LossTerm


NOT_LOGGED = "not_logged"
"""The mistake of a number that is missing, while the version logs it of other steps."""


def judge_logged(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    metric: Metric = Metric.POLICY_LOSS,
) -> Judgement:
    """Judge the metric that each rank logs; it is wrong if no rank logs it.

    Error and bound are relative to the sum of |weight · quantity|, as terms may cancel.
    """
    showings: list[Showing] = []
    for step_index in range(len(job.steps)):
        reported = _reported(observations, step_index, metric)
        if not reported:
            return _not_logged(f"{metric} of step {step_index}")
        context = step_context(job, step_index, observations, description)
        terms = loss_terms.logged_terms(context, job.objective, metric)
        tolerance = _tolerance(job, step_index, description)
        showings += (
            Showing(
                terms=terms, observed=np.array([value]), tolerance=tolerance, is_per_token=False
            )
            for value in reported
        )
    return _judged(job, metric, showings)


def judge_logged_of_rollouts(
    job: Job, observations: Sequence[Observation], description: Description, metric: Metric
) -> Judgement:
    """Judge the mean over a batch of rollouts that each rank logs.

    Error and bound are relative to the sum of |weight · quantity|, and of what rounding errors of
    advantages are relative to.
    """
    reported = _reported(observations, 0, metric)
    if not reported:
        return _not_logged(f"{metric} of the rollouts")
    steps = range(len(job.steps))
    contexts = [step_context(job, index, observations, description) for index in steps]
    term = loss_terms.rollout_term(contexts, job.objective, metric)
    tokens = sum(len(step.mask) for step in job.steps)
    tolerance = ratio_bound(description.dtype, tokens)
    showings = [
        Showing(terms=[term], observed=np.array([value]), tolerance=tolerance, is_per_token=False)
        for value in reported
    ]
    return _judged(job, metric, showings)


def _not_logged(what: str) -> Judgement:
    return mismatch(NOT_LOGGED, f"no rank logs {what}, and this version logs it of other steps")


def _judged(job: Job, metric: Metric, showings: Sequence[Showing]) -> Judgement:
    expected = (number for one in showings for number in _expected_numbers(job, metric, one.terms))
    return replace(
        judge_showings(showings, _error, _wrong), expected=tuple(dict.fromkeys(expected))
    )


def _error(showing: Showing) -> float | None:
    [error] = np.abs(showing.observed - showing.expected) / (showing.magnitude or 1.0)
    return float(error) if np.isfinite(error) else None


def _wrong(showing: Showing) -> Judgement:
    reported = float(showing.observed[0])
    expected = math.fsum(term.expected for term in showing.terms)
    return Judgement(
        verdict=Verdict.MISMATCH,
        agreement=agreement(showing.observed, showing.expected, showing.magnitude),
        diagnosis=_diagnosis(reported, expected, showing.terms, showing.tolerance),
        logged=Logged(expected=expected, reported=reported if math.isfinite(reported) else None),
    )


def _expected_numbers(job: Job, metric: Metric, terms: Sequence[LossTerm]) -> list[ExpectedNumber]:
    """The value of each term, named after the number that it is a term of."""
    return [
        ExpectedNumber(
            f"{term.metric} in {metric} of {job.objective}, {term.context.scope}", term.expected
        )
        for term in terms
    ]


def _diagnosis(
    reported: float, expected: float, terms: Sequence[LossTerm], tolerance: float
) -> Diagnosis:
    """The mistake in one term if the others are right, or in several."""
    magnitude = math.fsum(term.magnitude for term in terms)
    off = reported - expected
    if len(terms) == 1:
        return _of_term(terms[0], off, magnitude, tolerance)
    for term in terms:
        if abs(reported - (expected - term.expected)) <= tolerance * magnitude:
            return left_out(term.metric)
    alone = likeliest((term.metric, _of_term(term, off, magnitude, tolerance)) for term in terms)
    if alone.name != "unexplained":
        return alone

    def matches(predicted: NDArray[np.float64]) -> bool:
        return abs(math.fsum(predicted) - reported) <= tolerance * magnitude

    return diagnose_shared_mistake(terms[0], terms[1:], matches) or alone


def _of_term(term: LossTerm, off: float, magnitude: float, tolerance: float) -> Diagnosis:
    """The diagnosis of a sum that is off, if one term alone is wrong."""
    return diagnose_reported(
        ReportedEvidence(
            term=term,
            reported=term.expected + off,
            tolerance=tolerance,
            others=magnitude - term.magnitude,
        )
    )


def _tolerance(job: Job, step_index: int, description: Description) -> float:
    """The bound on the error; a policy loss with ratios of exactly 1 is exact."""
    operations = 0 if job.objective is Objective.POLICY else TERM_OPERATIONS
    tokens = int(job.steps[step_index].mask_before_rejection.sum())
    return reported_bound(tokens, description.dtype, operations)


def _reported(observations: Sequence[Observation], step_index: int, metric: Metric) -> list[float]:
    """The values of the ranks that log the metric."""
    of_ranks = [observation.reported.get(metric, ()) for observation in observations]
    values = [of_steps[step_index] for of_steps in of_ranks if step_index < len(of_steps)]
    return [value for value in values if value is not None]
