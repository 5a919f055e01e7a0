"""Judges the gradient of several terms, each reduced in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric
from adapters.contract.probed_batch import ProbedBatch
from conformance.diagnosis.explain import Evidence, diagnose, likeliest, without_gradient
from conformance.diagnosis.shared_mistakes import Summand, diagnose_joint
from conformance.findings.agreement import agreement
from conformance.findings.verdict import Verdict
from conformance.judging import loss_terms
from conformance.judging.picture import picture
from conformance.judging.weights import Judgement, combined, step_context, worse
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.diagnosis.step_context import StepContext
    from conformance.findings.finding import Diagnosis


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One term of the gradient: what a token's weight is multiplied by, and how it is reduced."""

    metric: Metric
    context: StepContext
    dloss_dlogprob: NDArray[np.float64]

    @property
    def gradient(self) -> NDArray[np.float64]:
        """The reference's: [tokens]."""
        return self.dloss_dlogprob * self.context.expected


def judge_combined(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Hold the sum of the terms' gradients against the reference's, token by token.

    The error of a token is relative to the sum of its terms' absolute values, as they may cancel.
    """
    tolerance = weight_bound(description.dtype, terms=len(loss_terms.COMBINED))
    worst = Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=tolerance)
    batch = ProbedBatch(job.steps, job.objective)
    for step_index, dloss_dlogprob in enumerate(batch.split(batch.dloss_dlogprob)):
        parts = _parts(step_context(job, step_index, observations, description), dloss_dlogprob)
        expected = np.sum([part.gradient for part in parts], axis=0)
        magnitude = np.sum([np.abs(part.gradient) for part in parts], axis=0)
        fingerprints = (part.context.fingerprint for part in parts)
        worst = replace(worst, expected=(*worst.expected, *fingerprints))
        for weights in combined(observations, step_index, job, description.conventions):
            off = weights * dloss_dlogprob - expected
            error = _error(off, magnitude)
            if error is not None and error <= tolerance:
                worst = worse(worst, error)
                continue
            return Judgement(
                verdict=Verdict.MISMATCH,
                error=error,
                tolerance=tolerance,
                agreement=agreement(weights * dloss_dlogprob, expected, magnitude),
                diagnosis=_diagnosis(off, magnitude, parts, tolerance),
                picture=picture(parts[0].context, weights * dloss_dlogprob, expected),
                expected=worst.expected,
            )
    return worst


def _parts(context: StepContext, dloss_dlogprob: NDArray[np.float64]) -> list[Part]:
    conventions = context.conventions
    return [
        Part(
            metric=term.metric,
            context=context.of_term(loss_terms.reducer_of_term(term.metric, conventions)),
            dloss_dlogprob=dloss_dlogprob
            if term.metric is Metric.POLICY_LOSS
            else np.full_like(dloss_dlogprob, term.coefficient),
        )
        for term in loss_terms.COMBINED
    ]


def _error(off: NDArray[np.float64], magnitude: NDArray[np.float64]) -> float | None:
    if not np.isfinite(off).all():
        return None
    active = magnitude > 0
    leaked = 1.0 if off[~active].any() else 0.0
    return float(max((np.abs(off[active]) / magnitude[active]).max(initial=0.0), leaked))


def _diagnosis(
    off: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    parts: Sequence[Part],
    tolerance: float,
) -> Diagnosis:
    """The mistake in one term, where the others are right; that of the first term that has one."""
    for part in parts:
        if (np.abs(off + part.gradient) <= tolerance * magnitude).all():
            return without_gradient(part.metric)
    alone = likeliest((part.metric, _of_part(off, magnitude, part, tolerance)) for part in parts)
    if alone.name != "unexplained":
        return alone
    policy, *others = (
        Summand(name=part.metric, context=part.context, factors=part.dloss_dlogprob)
        for part in parts
    )
    observed = off + np.sum([part.gradient for part in parts], axis=0)

    def matches(predicted: NDArray[np.float64]) -> bool:
        return bool((np.abs(observed - predicted) <= tolerance * magnitude).all())

    return diagnose_joint(policy, others, matches) or alone


def _of_part(
    off: NDArray[np.float64], magnitude: NDArray[np.float64], part: Part, tolerance: float
) -> Diagnosis:
    """What explains all that is off by one term's weights, within what all terms round."""
    gradient = np.abs(part.gradient)
    active = gradient > 0
    amplified = float((magnitude[active] / gradient[active]).max(initial=1.0))
    observed = part.context.expected + off / part.dloss_dlogprob
    return diagnose(
        Evidence(context=part.context, observed=observed, tolerance=tolerance * amplified)
    )
