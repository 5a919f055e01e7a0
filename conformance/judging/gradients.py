"""Judges gradients that are more than a token's weight times a known derivative.

In a combined loss, each term has an aggregation of its own. In an off-policy loss, the derivative
is 0 for clipped tokens. In other losses, the framework computes the advantages itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import CONSTANTS, NORMALISED, Objective
from conformance.expected import loss_terms
from conformance.expected.term import LossTerm, PolicyDerivative
from conformance.explain.diagnosis import diagnose
from conformance.explain.measurement import Measurement
from conformance.findings.agreement import agreement
from conformance.findings.cause import UNEXPLAINED, TermMistake
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import (
    Judgement,
    advice,
    mismatch,
    unjudged,
    wrong_gradient,
)
from reference.aggregation import DEFAULT_CONVENTIONS, Aggregation, Mode
from reference.losses import corrections, policy_losses
from reference.rounding import ratio_bound, weight_bound
from reference.weights import router_coefficient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from conformance.expected.step_context import StepContext
    from conformance.explain.engine import Explained
    from conformance.judging.weights import Trained
    from reference.losses.policy_losses import PolicyTokens
    from reference.step import Step


def judge_combined(trained: Trained) -> Judgement:
    """Judge the sum of the terms' gradients, token by token.

    The error of a token is relative to the sum of its terms' absolute values, as terms may cancel.
    """
    objective = trained.job.objective
    tolerance = weight_bound(trained.description.dtype, terms=len(loss_terms.SUMS[objective]))
    measurements = [
        Measurement(terms=terms, observed=weights * derivatives, tolerance=tolerance)
        for context, derivatives, of_ranks in trained.steps()
        for terms in [loss_terms.combined_terms(context, derivatives, objective)]
        for weights in of_ranks
    ]
    return trained.judged(measurements, _error, wrong_gradient)


def judge_off_policy(trained: Trained) -> Judgement:
    """Judge the gradient of a loss with clipping, token by token.

    The loss is a policy loss with ratios other than 1, or a critic's clipped loss.
    """
    objective, description = trained.job.objective, trained.description
    batch = ProbedBatch.of(trained.job, description.conventions)
    measurements: list[Measurement] = []
    for context, derivatives, of_ranks in trained.steps():
        if objective is Objective.VALUE_CLIPPED:
            term, condition_number = loss_terms.clipped_value_term(context), 1.0
        else:
            tokens = batch.policy_tokens_of_step(context.step_index)
            term = loss_terms.off_policy_term(context, objective, tokens)
            condition_number = condition(objective, tokens)
        active = context.step.active_tokens
        summed = active.sum() if objective in NORMALISED else active.max()
        tolerance = ratio_bound(description.dtype, int(summed), condition_number)
        divisors = np.where(derivatives == 0, 1.0, derivatives)
        measurements += (
            Measurement(
                terms=[term],
                observed=_resolve_ties(term, weights * divisors, tolerance),
                tolerance=tolerance,
            )
            for weights in of_ranks
        )
    return trained.judged(measurements, _error, wrong_gradient)


def _resolve_ties(
    term: LossTerm, observed: NDArray[np.float64], tolerance: float
) -> NDArray[np.float64]:
    """The observed gradient, with ties in token selection broken as the reference does."""
    source = term.source
    if not isinstance(source, PolicyDerivative):
        return observed
    if source.objective is not Objective.COVARIANCE_PENALISED:
        return observed
    tokens, without = source.tokens, policy_losses.importance_sampling(source.tokens, CONSTANTS)
    penalised = policy_losses.kl_cov(tokens, CONSTANTS)
    other = np.where(term.factors == without, penalised, without) * term.context.expected
    is_other = corrections.tied(tokens, CONSTANTS) & np.isclose(observed, other, tolerance, 0)
    return np.where(is_other, term.products, observed)


def judge_advantages(trained: Trained) -> Judgement:
    """Judge the gradient of a policy loss whose advantages the framework computed from rewards."""
    job, steps = trained.job, [*trained.steps()]
    contexts = [context for context, _, _ in steps]
    shown = np.concatenate([_advantages(context, of_ranks) for context, _, of_ranks in steps])
    terms = loss_terms.advantage_terms(contexts, job.objective, shown)
    tolerance = ratio_bound(trained.description.dtype, sum(len(step.mask) for step in job.steps))
    measurements = [
        Measurement(terms=[term], observed=-weights, tolerance=tolerance)
        for term, (_, _, of_ranks) in zip(terms, steps, strict=True)
        for weights in of_ranks
    ]
    return trained.judged(measurements, _error, wrong_gradient)


MEGATRONS_OWN = "megatron/core/transformer/moe/router.py (apply_z_loss, _apply_aux_loss)"


def judge_router(trained: Trained) -> Judgement:
    """Judge the coefficient, in each step, of the losses that the model itself adds: 1 is right.

    Megatron-Core documents that a router's losses are means over micro-batches and data-parallel
    ranks (``attach_and_log_load_balancing_loss``), whatever the policy loss is divided by.
    """
    job = trained.job
    on_last_stage = trained.observations[job.layout.last_stage]
    holding = [one for one in on_last_stage if one.own_losses]
    if not holding:
        return unjudged(Verdict.NOT_DRIVEN, "the adapter reads no losses of the model's own")
    tolerance = ratio_bound(trained.description.dtype, sum(map(_routed, job.steps)))
    measurements = [
        Measurement(
            terms=[_router_term(trained.context(index))],
            observed=np.array([of_steps[index]]),
            tolerance=tolerance,
            is_per_token=False,
        )
        for one in holding
        for of_steps in one.own_losses.values()
        for index in range(len(job.steps))
    ]
    judged = trained.judged(measurements, _error, _wrong_coefficient)
    judgement = replace(judged, expected=())  # a router also counts prompt tokens
    routed = sum(one.routed for one in on_last_stage)
    if judgement.verdict is Verdict.CONFORMS:
        return judgement
    if not routed:
        return _partial_loss_mismatch(measurements[0], judgement) or judgement
    return _judge_loss_per_token(job, routed, float(measurements[0].observed[0])) or judgement


def _router_term(of_step: StepContext) -> LossTerm:
    """The term of a loss that is a mean over all tokens, prompts included.

    Prompt tokens count as held where the first token of their response is held.
    """
    step, passes = of_step.step, of_step.forward_pass_of_token
    lengths = step.prompt_lengths + step.response_lengths
    routed = replace(
        step,
        response_lengths=lengths,
        mask=np.ones(int(lengths.sum()), np.bool_),
        original_mask=None,
    )
    places = [
        max(token, 0) + start
        for start, prompt, length in zip(step.offsets, step.prompt_lengths, lengths, strict=False)
        for token in range(-prompt, length - prompt)
    ]
    context = replace(
        of_step,
        steps=(routed,),
        step_index=0,
        aggregation=Aggregation(Mode.TOKEN_MEAN),
        conventions=DEFAULT_CONVENTIONS,
        forward_pass_of_token=None if passes is None else passes[:, places],
        rows_of_passes=None,
    )
    return LossTerm(metric=Objective.ROUTER, context=context, factors=np.ones(len(places)))


def _routed(step: Step) -> int:
    """The number of tokens of a step that a router sees, including prompts."""
    return int((step.prompt_lengths + step.response_lengths).sum())


def _wrong_coefficient(explained: Explained) -> Judgement:
    measurement, diagnosis = explained.measurement, diagnose(explained)
    found = float(measurement.observed[0])
    explanation = f"a loss of the router has {found:.7g} times its coefficient"
    _, colon, rest = diagnosis.explanation.partition(": ")
    return Judgement(
        verdict=Verdict.MISMATCH,
        agreement=agreement(measurement.observed, measurement.expected, measurement.magnitude),
        scale=found,
        diagnosis=diagnosis.model_copy(update={"explanation": f"{explanation}{colon}{rest}"}),
    )


def _partial_loss_mismatch(measurement: Measurement, judgement: Judgement) -> Judgement | None:
    """The mismatch if ranks keep router losses only of their last micro-batch, or of all others.

    Each micro-batch is weighted by its number of samples.
    """
    context, found = measurement.context, float(measurement.observed[0])
    placement, diagnosis = context.placement, judgement.diagnosis
    is_explained = diagnosis is None or diagnosis.name != UNEXPLAINED
    if is_explained or placement is None or placement.micro_batches.max() == 1:
        return None
    last = placement.micro_batch == placement.micro_batches - 1
    kept = {name: _samples(context, of) for name, of in (("last", last), ("first", ~last))}
    name = next((one for one, share in kept.items() if abs(found - share) < 1e-6), None)
    if name is None:
        return None
    lost = TermMistake.of(Objective.ROUTER, "micro_batches_lost")
    words = f"a loss of the router has {found:.7g} times its coefficient: that of the {name}"
    return replace(
        judgement,
        diagnosis=Diagnosis(name=lost.mistake, explanation=f"{words} micro-batches of ranks"),
        clues=judgement.clues and judgement.clues.model_copy(update={"explanations": [[[lost]]]}),
    )


def _samples(context: StepContext, tokens: NDArray[np.bool_]) -> float:
    """The share of a step's samples that have at least one of the given tokens."""
    return len(np.unique(context.sample[tokens])) / context.step.size


def _judge_loss_per_token(job: Job, routed: int, coefficient: float) -> Judgement | None:
    """The judgement of router losses with a loss per token.

    Megatron-Core's router multiplies its losses by the number of a rank's positions, including
    padding; each context-parallel rank has a share of the positions. All gradients are then divided
    by the tokens that the framework counts. Any count between the active tokens and all positions
    keeps Megatron-Core's contract.
    """
    counted = router_coefficient(np.array([routed]), job.layout.cp, counted=coefficient)
    if counted < 1.5:
        words = (
            f"a loss of the router has {coefficient:.7g} times its coefficient: Megatron-Core"
            f" multiplies it by the number of tokens ({MEGATRONS_OWN}), and nothing divides it by"
            " that number"
        )
        return replace(mismatch("router_losses_not_divided", words), scale=coefficient)
    active = sum(int(step.active_tokens.sum()) for step in job.steps)
    if not active - job.layout.cp <= counted <= routed + 0.5:
        return None
    words = (
        f"with a loss per token, a loss of the router has {coefficient:.4g} times its coefficient:"
        f" {routed} routed positions / {job.layout.cp} context-parallel ranks / {counted:.0f}"
        f" counted tokens; see {MEGATRONS_OWN}"
    )
    diagnosis = Diagnosis(name="router_losses_per_token", explanation=words)
    return advice(diagnosis)


def _advantages(
    context: StepContext, of_ranks: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The advantages that the first rank's gradient shows if its weights are right: [tokens]."""
    weights = np.where(context.expected > 0, context.expected, np.nan)
    found: NDArray[np.float64] = of_ranks[0] / weights
    return found


def condition(objective: Objective, tokens: PolicyTokens) -> float:
    """The condition number of a derivative, relative to rounding errors of its parts.

    In SAPO, 1 - σ is small where the sigmoid's input is large, but its rounding error is that of a
    number near 1. In kl-cov and DRO, a penalty may cancel most of the policy loss.
    """
    if objective is Objective.SAPO:
        return float(np.exp(policy_losses.gate_inputs(tokens, CONSTANTS)).max(initial=1.0))
    if objective in (Objective.KL_COV, Objective.COVARIANCE_PENALISED):
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
