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
from conformance.judging.weights import Judgement, mismatch, unjudged
from reference.controllers import AdaptiveCoefficient
from reference.rounding import TERM_OPERATIONS, ratio_bound, reported_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.expected.term import LossTerm
    from conformance.explain.engine import Explained
    from conformance.judging.weights import Trained
    from reference.step import Step


NOT_LOGGED = "not_logged"
"""The mistake of a step whose metric is missing, while the version logs it for other steps."""


def judge_logged(trained: Trained, metric: Metric = Metric.POLICY_LOSS) -> Judgement:
    """Judge the metric that each rank logs; a step with active tokens must log it on some rank.

    Error and bound are relative to the sum of |weight · quantity|, as terms may cancel.
    """
    if any(one.logs_together for one in trained.observations):
        return unjudged(Verdict.UNSUPPORTED, "each logged number is of several optimizer steps")
    measurements: list[Measurement] = []
    for step_index, step in enumerate(trained.job.steps):
        reported = _reported(trained, step_index, metric)
        if not reported and step.mask_before_rejection.any():
            return _not_logged(f"{metric} of step {step_index}")
        terms = loss_terms.logged_terms(trained.context(step_index), trained.job.objective, metric)
        tolerance = _tolerance(trained, step)
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
    return _judged(trained, metric, measurements)


def _bounds(term: LossTerm) -> tuple[float, float] | None:
    """The range of an adaptive coefficient after a step; None for other terms."""
    if not isinstance(term.source, AdaptiveCoefficient):
        return None
    return term.source.after(-math.inf), term.source.after(math.inf)


def judge_logged_of_rollouts(trained: Trained, metric: Metric) -> Judgement:
    """Judge the mean over a batch of rollouts that each rank logs.

    Error and bound are relative to the sum of |weight · quantity|, plus the scale of rounding
    errors of advantages.
    """
    reported = _reported(trained, 0, metric)
    if not reported:
        return _not_logged(f"{metric} of the rollouts")
    term = loss_terms.rollout_term(trained.contexts, trained.job.objective, metric)
    tokens = sum(len(step.mask) for step in trained.job.steps)
    tolerance = ratio_bound(trained.description.dtype, tokens)
    measurements = [
        Measurement(
            terms=[term], observed=np.array([value]), tolerance=tolerance, is_per_token=False
        )
        for value in reported
    ]
    return _judged(trained, metric, measurements)


def _not_logged(what: str) -> Judgement:
    return mismatch(NOT_LOGGED, f"no rank logs {what}, and this version logs it of other steps")


def _judged(trained: Trained, metric: Metric, measurements: Sequence[Measurement]) -> Judgement:
    """The judgement, with the expected value of each term, named after the term and its metric."""
    expected = (
        ExpectedNumber(
            f"{term.metric} in {metric} of {trained.job.objective}, {term.context.scope}",
            term.expected,
        )
        for one in measurements
        for term in one.terms
    )
    judgement = trained.judged(measurements, _error, _wrong)
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


def _tolerance(trained: Trained, step: Step) -> float:
    """The bound on the error; a policy loss with ratios of exactly 1 is exact."""
    operations = 0 if trained.job.objective is Objective.POLICY else TERM_OPERATIONS
    tokens = int(step.mask_before_rejection.sum())
    return reported_bound(tokens, trained.description.dtype, operations)


def _reported(trained: Trained, step_index: int, metric: Metric) -> list[float]:
    """The values of the ranks that log the metric."""
    of_ranks = [rank.reported.get(metric, ()) for rank in trained.observations]
    values = [of_steps[step_index] for of_steps in of_ranks if step_index < len(of_steps)]
    return [value for value in values if value is not None]
