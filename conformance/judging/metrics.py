"""Judges the metrics that a framework logs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric, Objective
from conformance.expected import loss_terms
from conformance.expected.step_context import ExpectedNumber
from conformance.explain.diagnosis import diagnose
from conformance.explain.measurement import Measurement
from conformance.findings.agreement import agreement
from conformance.findings.finding import Logged
from conformance.findings.verdict import Verdict
from conformance.judging.weights import (
    Judgement,
    judge_measurements,
    mismatch,
    step_context,
    unjudged,
)
from reference.controllers import AdaptiveCoefficient
from reference.rounding import TERM_OPERATIONS, ratio_bound, reported_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Description, Job, Observation
    from conformance.expected.term import LossTerm
    from conformance.explain.engine import Explained
    from conformance.judging.weights import Judging


NOT_LOGGED = "not_logged"
"""The mistake of a step whose metric is missing, while the version logs it for other steps."""


def judge_logged(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    judging: Judging = judge_measurements,
    *,
    metric: Metric = Metric.POLICY_LOSS,
) -> Judgement:
    """Judge the metric that each rank logs; a step with active tokens must log it on some rank.

    Error and bound are relative to the sum of |weight · quantity|, as terms may cancel.
    """
    if any(one.logs_together for one in observations):
        return unjudged(Verdict.UNSUPPORTED, "each logged number is of several optimizer steps")
    measurements: list[Measurement] = []
    for step_index in range(len(job.steps)):
        reported = _reported(observations, step_index, metric)
        if not reported and job.steps[step_index].mask_before_rejection.any():
            return _not_logged(f"{metric} of step {step_index}")
        context = step_context(job, step_index, observations, description)
        terms = loss_terms.logged_terms(context, job.objective, metric)
        tolerance = _tolerance(job, step_index, description)
        measurements += (
            Measurement(
                terms=terms,
                observed=np.array([value]),
                tolerance=tolerance,
                is_per_token=False,
                bounds=_bounds(terms[0]),
            )
            for value in reported
        )
    return _judged(job, metric, measurements, judging)


def _bounds(term: LossTerm) -> tuple[float, float] | None:
    """The range of an adaptive coefficient after a step; None for other terms."""
    if not isinstance(term.source, AdaptiveCoefficient):
        return None
    return term.source.after(-math.inf), term.source.after(math.inf)


def judge_logged_of_rollouts(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    judging: Judging = judge_measurements,
    *,
    metric: Metric,
) -> Judgement:
    """Judge the mean over a batch of rollouts that each rank logs.

    Error and bound are relative to the sum of |weight · quantity| and of the scale of rounding
    errors of advantages.
    """
    reported = _reported(observations, 0, metric)
    if not reported:
        return _not_logged(f"{metric} of the rollouts")
    steps = range(len(job.steps))
    contexts = [step_context(job, index, observations, description) for index in steps]
    term = loss_terms.rollout_term(contexts, job.objective, metric)
    tokens = sum(len(step.mask) for step in job.steps)
    tolerance = ratio_bound(description.dtype, tokens)
    measurements = [
        Measurement(
            terms=[term], observed=np.array([value]), tolerance=tolerance, is_per_token=False
        )
        for value in reported
    ]
    return _judged(job, metric, measurements, judging)


def _not_logged(what: str) -> Judgement:
    return mismatch(NOT_LOGGED, f"no rank logs {what}, and this version logs it of other steps")


def _judged(
    job: Job, metric: Metric, measurements: Sequence[Measurement], judging: Judging
) -> Judgement:
    expected = (
        number for one in measurements for number in _expected_numbers(job, metric, one.terms)
    )
    judgement = judging(measurements, _error, _wrong)
    return replace(judgement, expected=tuple(dict.fromkeys(expected)))


def _error(measurement: Measurement) -> float | None:
    [error] = np.abs(measurement.observed - measurement.expected) / (measurement.magnitude or 1.0)
    return float(error) if np.isfinite(error) else None


def _wrong(explained: Explained) -> Judgement:
    measurement = explained.measurement
    reported = float(measurement.observed[0])
    expected = float(measurement.expected[0])
    return Judgement(
        verdict=Verdict.MISMATCH,
        agreement=agreement(measurement.observed, measurement.expected, measurement.magnitude),
        diagnosis=diagnose(explained),
        logged=Logged(expected=expected, reported=reported if math.isfinite(reported) else None),
    )


def _expected_numbers(job: Job, metric: Metric, terms: Sequence[LossTerm]) -> list[ExpectedNumber]:
    """The value of each term, named after the metric whose sum it is in."""
    return [
        ExpectedNumber(
            f"{term.metric} in {metric} of {job.objective}, {term.context.scope}", term.expected
        )
        for term in terms
    ]


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
