"""Judges gradients where weights alone do not say what is right.

The terms of a combined loss each have an aggregation of their own, off-policy losses have a
derivative that is 0 for tokens that are clipped, and advantages may be the framework's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import CONSTANTS, Objective
from adapters.contract.probed_batch import ProbedBatch
from conformance.expected import loss_terms
from conformance.explain.diagnosis import diagnose
from conformance.explain.measurement import Measurement
from conformance.findings.agreement import agreement, direction
from conformance.findings.verdict import Verdict
from conformance.judging.picture import picture
from conformance.judging.weights import (
    Judgement,
    final_weights,
    judge_measurements,
    step_context,
)
from reference import policy_losses
from reference.rounding import ratio_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.expected.step_context import StepContext
    from reference.policy_losses import PolicyTokens


def judge_combined(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge the sum of the terms' gradients, token by token.

    The error of a token is relative to the sum of its terms' absolute values, as terms may cancel.
    """
    tolerance = weight_bound(description.dtype, terms=len(loss_terms.COMBINED))
    batch = ProbedBatch.of(job, description.conventions)
    measurements: list[Measurement] = []
    for step_index, dloss_dlogprob in enumerate(batch.split(batch.dloss_dlogprob)):
        context = step_context(job, step_index, observations, description)
        terms = loss_terms.combined_terms(context, dloss_dlogprob)
        measurements += (
            Measurement(terms=terms, observed=weights * dloss_dlogprob, tolerance=tolerance)
            for weights in final_weights(observations, step_index, job, description.conventions)
        )
    return judge_measurements(measurements, _error, _wrong)


def judge_off_policy(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge the gradient of a policy loss with ratios other than 1, token by token."""
    batch = ProbedBatch.of(job, description.conventions)
    measurements: list[Measurement] = []
    for step_index in range(len(job.steps)):
        context = step_context(job, step_index, observations, description)
        tokens = batch.policy_tokens_of_step(step_index)
        term = loss_terms.off_policy_term(context, job.objective, tokens)
        tolerance = ratio_bound(
            description.dtype,
            int(context.step.active_tokens.max()),
            condition(job.objective, tokens),
        )
        measurements += (
            Measurement(
                terms=[term],
                observed=weights * np.where(term.hidden, 1.0, term.factors),
                tolerance=tolerance,
            )
            for weights in final_weights(observations, step_index, job, description.conventions)
        )
    return judge_measurements(measurements, _error, _wrong)


def judge_advantages(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge the gradient of a policy loss whose advantages the framework computed from rewards."""
    contexts = [
        step_context(job, index, observations, description) for index in range(len(job.steps))
    ]
    tokens = sum(len(step.mask) for step in job.steps)
    of_steps = [
        final_weights(observations, index, job, description.conventions)
        for index in range(len(job.steps))
    ]
    observed = [_advantages(*pair) for pair in zip(contexts, of_steps, strict=True)]
    terms = loss_terms.advantage_terms(contexts, job.objective, np.concatenate(observed))
    measurements = [
        Measurement(
            terms=[term], observed=-weights, tolerance=ratio_bound(description.dtype, tokens)
        )
        for term, of_ranks in zip(terms, of_steps, strict=True)
        for weights in of_ranks
    ]
    return judge_measurements(measurements, _error, _wrong)


def _advantages(
    context: StepContext, of_ranks: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The advantages that the first rank's gradient has if weights are right: [tokens]."""
    weights = np.where(context.expected > 0, context.expected, np.nan)
    found: NDArray[np.float64] = of_ranks[0] / weights
    return found


def condition(objective: Objective, tokens: PolicyTokens) -> float:
    """By what a rounding error of a derivative is larger than one of its parts.

    SAPO's sigmoid σ is 1 within one rounding where its input is large, which 1 - σ is relative to;
    a penalty may cancel all but a part of the policy loss.
    """
    if objective is Objective.SAPO:
        return float(np.exp(policy_losses.gate_inputs(tokens, CONSTANTS)).max(initial=1.0))
    if objective is Objective.KL_COV:
        parts = np.abs(tokens.advantages * tokens.ratios) + CONSTANTS.kl_penalty
        return float((parts / np.abs(policy_losses.kl_cov(tokens, CONSTANTS))).max(initial=1.0))
    if objective is Objective.DRO:
        parts = np.abs(tokens.advantages) + np.abs(CONSTANTS.kl_penalty * tokens.log_ratios)
        return float((parts / np.abs(policy_losses.dro(tokens, CONSTANTS))).max(initial=1.0))
    return 1.0


def _error(measurement: Measurement) -> float | None:
    off = np.abs(measurement.observed - measurement.expected)
    if not np.isfinite(off).all():
        return None
    active = measurement.magnitude > 0
    leaked = 1.0 if off[~active].any() else 0.0
    return float(max((off[active] / measurement.magnitude[active]).max(initial=0.0), leaked))


def _wrong(measurement: Measurement) -> Judgement:
    scale, cosine = direction(measurement.observed, measurement.expected)
    return Judgement(
        verdict=Verdict.MISMATCH,
        scale=scale,
        cosine=cosine,
        agreement=agreement(measurement.observed, measurement.expected, measurement.magnitude),
        diagnosis=diagnose(measurement),
        picture=picture(measurement.context, measurement.observed, measurement.expected),
    )
