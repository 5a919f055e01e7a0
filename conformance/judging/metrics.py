"""Judges numbers that a framework logs of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from conformance.diagnosis.explain import ReportedEvidence, diagnose_reported, left_out, likeliest
from conformance.diagnosis.shared_mistakes import Summand, diagnose_joint
from conformance.diagnosis.step_context import ExpectedNumber, StepContext
from conformance.findings.agreement import agreement
from conformance.findings.finding import Diagnosis, Logged
from conformance.findings.verdict import Verdict
from conformance.judging import loss_terms
from conformance.judging.weights import Judgement, step_context, worse
from reference.aggregation import MicroBatchWeight
from reference.rounding import TERM_OPERATIONS, reported_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """What one term adds to a logged number of a step: weights · quantities · coefficient."""

    metric: Metric
    context: StepContext
    quantities: NDArray[np.float64]
    """Of each token, the coefficient included: [tokens]."""

    @cached_property
    def expected(self) -> float:
        """The reference's share."""
        return math.fsum(self.context.expected * self.quantities)

    @property
    def magnitude(self) -> float:
        """What its rounding errors are relative to."""
        return float(np.abs(self.context.expected * self.quantities).sum())


def judge_logged(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    metric: Metric = Metric.POLICY_LOSS,
) -> Judgement | None:
    """Hold what each rank logs against the reference; None if none logs it.

    The error is relative to the sum of |weight · quantity|, as is its bound: the number itself may
    cancel.
    """
    worst: Judgement | None = None
    for step_index in range(len(job.steps)):
        reported = [*_reported(observations, step_index, metric)]
        if not reported:
            continue
        shares = _shares(job, step_index, observations, description, metric)
        tolerance = _tolerance(job, step_index, description)
        expected = (*(worst.expected if worst else ()), *_expected_numbers(job, metric, shares))
        for value in reported:
            judgement = replace(_judge(value, shares, tolerance), expected=expected)
            if judgement.verdict is Verdict.MISMATCH:
                return judgement
            assert judgement.error is not None
            worst = judgement if worst is None else worse(worst, judgement.error)
        assert worst is not None
        worst = replace(worst, expected=expected)
    return worst


def _expected_numbers(job: Job, metric: Metric, shares: Sequence[Share]) -> list[ExpectedNumber]:
    """Each term's share, under the name of the number it is a share of, which has a coefficient."""
    return [
        ExpectedNumber(f"{share.metric} in {metric} of {job.objective}, {scope}", share.expected)
        for share in shares
        for scope in [share.context.scope]
    ]


def _judge(reported: float, shares: Sequence[Share], tolerance: float) -> Judgement:
    expected = math.fsum(share.expected for share in shares)
    magnitude = math.fsum(share.magnitude for share in shares)
    error = abs(reported - expected) / (magnitude or 1.0)
    if math.isfinite(error) and error <= tolerance:
        return Judgement(verdict=Verdict.CONFORMS, error=error, tolerance=tolerance)
    return Judgement(
        verdict=Verdict.MISMATCH,
        error=error if math.isfinite(error) else None,
        tolerance=tolerance,
        agreement=agreement(*map(np.atleast_1d, (reported, expected, magnitude))),
        diagnosis=_diagnosis(reported, expected, shares, tolerance),
        logged=Logged(expected=expected, reported=reported if math.isfinite(reported) else None),
    )


def _diagnosis(
    reported: float, expected: float, shares: Sequence[Share], tolerance: float
) -> Diagnosis:
    """The mistake in one term, where the others are right; that of the first term that has one."""
    magnitude = math.fsum(share.magnitude for share in shares)
    for share in shares if len(shares) > 1 else ():
        if abs(reported - (expected - share.expected)) <= tolerance * magnitude:
            return left_out(share.metric)
    found = [
        (share.metric, _of_share(share, reported - expected, magnitude, tolerance))
        for share in shares
    ]
    alone = found[0][1] if len(found) == 1 else likeliest(found)
    if len(found) == 1 or alone.name != "unexplained":
        return alone
    policy, *others = (
        Summand(name=share.metric, context=share.context, factors=share.quantities)
        for share in shares
    )

    def matches(predicted: NDArray[np.float64]) -> bool:
        return abs(math.fsum(predicted) - reported) <= tolerance * magnitude

    return diagnose_joint(policy, others, matches) or alone


def _of_share(share: Share, off: float, magnitude: float, tolerance: float) -> Diagnosis:
    """What explains that a sum of terms, of this magnitude, is off, if one term alone is wrong."""
    return diagnose_reported(
        ReportedEvidence(
            context=share.context,
            losses=share.quantities,
            expected=share.expected,
            reported=share.expected + off,
            tolerance=tolerance,
            others=magnitude - share.magnitude,
        )
    )


def _shares(
    job: Job,
    step_index: int,
    observations: Sequence[Observation],
    description: Description,
    metric: Metric,
) -> list[Share]:
    conventions = description.conventions
    batch = ProbedBatch(job.steps, job.objective)
    context = step_context(job, step_index, observations, description)
    if metric is not Metric.LOSS:
        plain = replace(conventions, micro_batch_weight=MicroBatchWeight.EQUAL)
        context = replace(context, conventions=plain)
    if metric is Metric.REJECTED:
        before = tuple(loss_terms.without_rejection(step) for step in job.steps)
        context = replace(context, steps=before)
    return [
        Share(
            metric=term.metric,
            context=context.of_term(loss_terms.reducer_of_term(term.metric, conventions)),
            quantities=term.coefficient
            * batch.split(loss_terms.quantities(term.metric, batch))[step_index],
        )
        for term in loss_terms.terms(metric, job.objective)
    ]


def _tolerance(job: Job, step_index: int, description: Description) -> float:
    """With a ratio of exactly 1 a token's loss is minus its advantage and rounds nothing."""
    operations = 0 if job.objective is Objective.POLICY else TERM_OPERATIONS
    tokens = int(job.steps[step_index].before.sum())
    return reported_bound(tokens, description.dtype, operations)


def _reported(
    observations: Sequence[Observation], step_index: int, metric: Metric
) -> Iterator[float]:
    """What the ranks log that log it."""
    for observation in observations:
        of_steps = observation.reported.get(metric, ())
        reported = of_steps[step_index] if of_steps else None
        if reported is not None:
            yield reported
