"""Compares what a framework did with the reference, within derived bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Combine
from adapters.probe import ProbedBatch
from conformance.cut import held
from conformance.diagnosis import Evidence, ReportedEvidence, diagnose, diagnose_reported
from conformance.mistakes import Situation
from conformance.report import Diagnosis, Verdict
from reference.aggregation import SampleUnit
from reference.rounding import reported_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    for number in range(len(job.steps)):
        situation = _situation(job, number, observations, description)
        for observed in _combined(observations, number, job, description.conventions):
            error = largest_error(observed, situation.expected)
            if error is not None and error <= tolerance:
                worst = _worse(worst, error)
                continue
            evidence = Evidence(situation=situation, observed=observed, tolerance=tolerance)
            return Judgement(
                verdict=Verdict.MISMATCH,
                error=error,
                tolerance=tolerance,
                diagnosis=diagnose(evidence),
            )
    return worst


def judge_reported(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement | None:
    """Hold the policy loss that each rank reports against the reference; None if none does.

    With a ratio of exactly 1 a token's loss is minus its advantage, whatever the clipping. The
    error is relative to the sum of |weight · loss|, as is its bound: the loss itself may cancel.
    """
    losses = -np.concatenate(ProbedBatch(job.steps).advantages)
    ends = np.cumsum([len(step.mask) for step in job.steps])
    worst: Judgement | None = None
    for number, of_step in enumerate(np.split(losses, ends[:-1])):
        situation = _situation(job, number, observations, description)
        expected = math.fsum(situation.expected * of_step)
        magnitude = float(np.abs(situation.expected * of_step).sum())
        tolerance = reported_bound(int(situation.step.active_tokens.sum()), description.dtype)
        for reported in _reported(observations, number):
            error = abs(reported - expected) / (magnitude or 1.0)
            if math.isfinite(error) and error <= tolerance:
                judgement = Judgement(verdict=Verdict.CONFORMS, error=error, tolerance=tolerance)
                worst = judgement if worst is None else _worse(worst, error)
                continue
            evidence = ReportedEvidence(
                situation=situation,
                losses=of_step,
                expected=expected,
                reported=reported,
                tolerance=tolerance,
            )
            return Judgement(
                verdict=Verdict.MISMATCH,
                error=error if math.isfinite(error) else None,
                tolerance=tolerance,
                diagnosis=diagnose_reported(evidence),
            )
    return worst


def _situation(
    job: Job, number: int, observations: Sequence[Observation], description: Description
) -> Situation:
    return Situation(
        steps=job.steps,
        number=number,
        aggregation=job.aggregation,
        conventions=description.conventions,
        layout=job.layout,
        held=held(observations, number, job.layout),
    )


def _reported(observations: Sequence[Observation], number: int) -> Iterator[float]:
    """What the ranks report that report anything."""
    for observation in observations:
        reported = observation.reported[number] if observation.reported else None
        if reported is not None:
            yield reported


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
