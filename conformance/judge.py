"""Compares what a framework did with the reference, within derived bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Combine
from conformance.diagnosis import Evidence, diagnose
from conformance.report import Diagnosis, Verdict
from reference.aggregation import SampleUnit
from reference.rounding import weight_bound
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from reference.aggregation import Conventions
    from reference.step import Step


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Verdict on observed weights, with the largest relative error found."""

    verdict: Verdict
    error: float | None
    tolerance: float
    diagnosis: Diagnosis | None = None


def judge_weights(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Hold the weights that the ranks saw against the reference, for every step of the job.

    An active token's weight may be off by the bound of its dtype; an inactive one's must be 0.
    """
    tolerance = weight_bound(description.dtype)
    worst = Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=tolerance)
    for number, step in enumerate(job.steps):
        expected = token_weights(step, job.aggregation, description.conventions)
        for observed in _combined(observations, number, job, description.conventions):
            error = largest_error(step, observed, expected)
            if error is not None and error <= tolerance:
                worst = _worse(worst, error)
                continue
            evidence = Evidence(
                step=step,
                aggregation=job.aggregation,
                conventions=description.conventions,
                layout=job.layout,
                expected=expected,
                observed=observed,
                tolerance=tolerance,
            )
            return Judgement(
                verdict=Verdict.MISMATCH,
                error=error,
                tolerance=tolerance,
                diagnosis=diagnose(evidence),
            )
    return worst


def largest_error(
    step: Step, observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> float | None:
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


def _worse(worst: Judgement, error: float) -> Judgement:
    if worst.error is not None and error <= worst.error:
        return worst
    return Judgement(verdict=worst.verdict, error=error, tolerance=worst.tolerance)


def _combined(
    observations: Sequence[Observation], number: int, job: Job, conventions: Conventions
) -> list[NDArray[np.float64]]:
    """Final weights as every rank has them after what the train step would still do.

    Tensor-parallel ranks each hold the gradient of all tokens: what is combined is combined over
    the others.
    """
    combine, tp, step = observations[0].combine, job.layout.tp, job.steps[number]
    if combine is Combine.REPLICATED:
        return [observation.weights[number] for observation in observations]
    return [
        _total(ranks, number) / _divisor(combine, ranks, number, step, conventions)
        for ranks in (observations[tp_rank::tp] for tp_rank in range(tp))
    ]


def _total(ranks: Sequence[Observation], number: int) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.sum([rank.weights[number] for rank in ranks], axis=0)
    return total


def _divisor(
    combine: Combine,
    ranks: Sequence[Observation],
    number: int,
    step: Step,
    conventions: Conventions,
) -> float:
    if combine is Combine.MEAN:
        return len(ranks)
    if combine is Combine.SUM_PER_COUNTED_TOKEN:
        return max(sum(rank.counted_tokens[number] for rank in ranks), 1)
    if combine is Combine.SUM_PER_TOKEN:
        return max(int(step.active_tokens.sum()), 1)
    if combine is Combine.SUM_PER_SAMPLE:
        by_rollout = conventions.sample_unit is SampleUnit.ROLLOUT
        return len(np.unique(step.rollouts)) if by_rollout else step.size
    return 1
