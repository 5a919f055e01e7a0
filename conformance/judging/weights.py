"""Compares what a framework did with the reference, within derived bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import PendingReduction
from adapters.contract.objective import Objective
from conformance.diagnosis.explain import Evidence, diagnose
from conformance.diagnosis.placement import forward_pass_of_token
from conformance.diagnosis.step_context import ExpectedNumber, StepContext
from conformance.findings.badness import agreement
from conformance.findings.verdict import Verdict
from conformance.judging import loss_terms
from conformance.judging.picture import picture
from reference.aggregation import SampleUnit
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.findings.finding import Diagnosis, Logged, Picture
    from reference.aggregation import Conventions
    from reference.step import Step


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Verdict on observed weights, with the largest relative error found."""

    verdict: Verdict
    error: float | None
    tolerance: float
    agreement: float | None = None
    """Of a mismatch, `conformance.findings.badness.agreement`."""

    diagnosis: Diagnosis | None = None
    message: str | None = None
    """The framework's own words, where it declined."""

    picture: Picture | None = None
    logged: Logged | None = None
    expected: tuple[ExpectedNumber, ...] = ()
    """What `conformance.findings.harness` compares over the findings of a run."""


def judge_weights(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Hold the weights that the ranks saw against the reference, for every step of the job.

    They are those of the objective's only term. An active token's weight may be off by the bound of
    its dtype; an inactive one's must be 0.
    """
    tolerance = weight_bound(description.dtype, _summands(job))
    worst = Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=tolerance)
    for step_index in range(len(job.steps)):
        context = step_context(job, step_index, observations, description)
        worst = replace(worst, expected=(*worst.expected, context.fingerprint))
        replicas = combined(observations, step_index, job, description.conventions)
        for observed in replicas:
            error = largest_error(observed, context.expected)
            if error is not None and error <= tolerance:
                worst = worse(worst, error)
                continue
            evidence = Evidence(
                context=context,
                observed=observed,
                tolerance=tolerance,
                elsewhere=bool(replicas[0].any()),
            )
            return Judgement(
                verdict=Verdict.MISMATCH,
                error=error,
                tolerance=tolerance,
                agreement=agreement(observed, context.expected),
                diagnosis=diagnose(evidence),
                picture=picture(context, observed, context.expected),
                expected=worst.expected,
            )
    return worst


def _summands(job: Job) -> int:
    """Weights that a token's is the sum of: where ratios are of whole sequences, the sample's."""
    if job.objective is not Objective.GSPO:
        return 0
    return max(int(step.active_tokens.max()) for step in job.steps)


def step_context(
    job: Job, step_index: int, observations: Sequence[Observation], description: Description
) -> StepContext:
    """One step of a job as it was cut, and how its objective's only term was to be reduced."""
    context = StepContext(
        steps=job.steps,
        step_index=step_index,
        aggregation=job.aggregation,
        conventions=description.conventions,
        layout=job.layout,
        forward_pass_of_token=forward_pass_of_token(observations, step_index, job.layout),
    )
    return context.of_term(loss_terms.reducer(job.objective, description.conventions))


def largest_error(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float | None:
    """Largest relative error of an active token's weight; None if a weight is not finite.

    A weight on an inactive token has no relative error of its own: it is given as a multiple of the
    largest weight in the step, or as it is where no token has any, and at least as 1.
    """
    if not np.isfinite(observed).all():
        return None
    active = expected != 0
    off_active = np.abs(observed[active] - expected[active]) / expected[active]
    leaked = np.abs(observed[~active]).max(initial=0.0)
    if leaked:
        leaked = max(leaked / expected.max(initial=0.0), 1.0) if active.any() else max(leaked, 1.0)
    return float(max(off_active.max(initial=0.0), leaked))


def worse(worst: Judgement, error: float) -> Judgement:
    """A judgement with the larger of its error and another one."""
    if worst.error is not None and error <= worst.error:
        return worst
    return replace(worst, error=error)


def combined(
    observations: Sequence[Observation], step_index: int, job: Job, conventions: Conventions
) -> list[NDArray[np.float64]]:
    """Final weights as every rank has them after what the train step would still do.

    Those of ranks that have none come last: where others have some, these tell what went wrong.

    Tensor-parallel ranks each hold the gradient of all tokens: what is combined is combined over
    the others.
    """
    pending_reduction, tp, step = (
        observations[0].pending_reduction,
        job.layout.tp,
        job.steps[step_index],
    )
    if pending_reduction is PendingReduction.REPLICATED:
        replicas = [observation.token_weights[step_index] for observation in observations]
        return sorted(replicas, key=lambda weights: not weights.any())
    return [
        _total(ranks, step_index)
        / _divisor(pending_reduction, ranks, step_index, step, conventions)
        for ranks in (observations[tp_rank::tp] for tp_rank in range(tp))
    ]


def _total(ranks: Sequence[Observation], step_index: int) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.sum([rank.token_weights[step_index] for rank in ranks], axis=0)
    return total


def _divisor(
    pending_reduction: PendingReduction,
    ranks: Sequence[Observation],
    step_index: int,
    step: Step,
    conventions: Conventions,
) -> float:
    if pending_reduction is PendingReduction.MEAN:
        return len(ranks)
    if pending_reduction is PendingReduction.SUM_PER_COUNTED_TOKEN:
        return max(sum(rank.counted_tokens[step_index] for rank in ranks), 1)
    if pending_reduction is PendingReduction.SUM_PER_TOKEN:
        return max(int(step.active_tokens.sum()), 1)
    if pending_reduction is PendingReduction.SUM_PER_SAMPLE:
        by_rollout = conventions.sample_unit is SampleUnit.ROLLOUT
        return len(np.unique(step.rollouts)) if by_rollout else step.size
    return 1
