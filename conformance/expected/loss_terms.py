"""The terms of an objective: the quantity of every token and its aggregation.

A term's weights are those of its own aggregation; a logged number is the sum of weight · quantity.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option
from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_CRITIC,
    OF_SAMPLES,
    OF_TERMS,
    OFF_POLICY,
    SELECTING,
    VALUE_COEFFICIENT,
    Metric,
    Objective,
)
from conformance.expected.advantages import BatchAdvantages, BatchPlacement, Estimate
from conformance.expected.estimators import estimator_conventions, rollouts_of
from conformance.expected.placement import zigzag_rank
from conformance.expected.term import (
    LossTerm,
    PolicyDerivative,
    PolicyQuantity,
    ValueDerivative,
)
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    ComparedTokens,
    DenominatorMask,
    LoggedMean,
    MicroBatchWeight,
    SampleUnit,
)
from reference.losses import policy_losses, value_losses
from reference.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from conformance.expected.step_context import StepContext
    from conformance.expected.term import Source
    from reference.aggregation import Conventions
    from reference.losses.policy_losses import PolicyTokens

    Quantity = Callable[[ProbedBatch], NDArray[np.float64]]


COMBINED = {
    Metric.POLICY_LOSS: 1.0,
    Metric.ENTROPY: -ENTROPY_COEFFICIENT,
    Metric.KL: KL_COEFFICIENT,
}
"""The coefficient of each term of the objectives `OF_TERMS`."""

SUMS = {
    **dict.fromkeys(OF_TERMS, COMBINED),
    Objective.WITH_VALUE: {Metric.POLICY_LOSS: 1.0, Metric.VALUE_LOSS: VALUE_COEFFICIENT},
}
"""The coefficient of each term, for the objectives that sum several terms."""


def coefficients(metric: Metric, objective: Objective) -> dict[Metric, float]:
    """The coefficients of the terms whose sum is logged."""
    if metric is not Metric.LOSS:
        return {metric: 1.0}
    return SUMS.get(objective, {Metric.POLICY_LOSS: 1.0})


TRAINED_TERMS: dict[Objective, Metric | Objective] = {
    Objective.ENTROPY: Metric.ENTROPY,
    Objective.KL: Metric.KL,
    Objective.ADAPTIVE_KL: Metric.KL,
    Objective.SFT: Objective.SFT,
    **dict.fromkeys(OF_CRITIC, Objective.VALUE),
}
"""The name of an objective's term, for objectives with a single term that is not a policy loss. All
policy losses share one name."""


def trained_term(objective: Objective) -> Metric | Objective:
    """The name of an objective's only term; all policy losses share one name."""
    return TRAINED_TERMS.get(objective, Metric.POLICY_LOSS)


def reducer(term: Metric | Objective, conventions: Conventions) -> AuxiliaryAggregation | None:
    """The aggregation of a term of a loss; None if it is aggregated as the policy loss."""
    of_critic = conventions.value_loss or AuxiliaryAggregation.WITH_TOKEN_MEAN
    return {
        Metric.ENTROPY: conventions.entropy,
        Metric.KL: conventions.kl,
        Metric.VALUE_LOSS: of_critic,
        Objective.VALUE: of_critic,
        Objective.SFT: AuxiliaryAggregation.WITH_TOKEN_MEAN,
    }.get(term)


CONVENTIONS_OF_LOGS = {
    Metric.POLICY_LOSS: ("logged_policy_loss",),
    Metric.ENTROPY: ("logged_entropy", "entropy"),
    Metric.KL: ("logged_kl", "kl"),
    Metric.KL_COEFFICIENT: ("logged_kl", "kl"),
    Metric.VALUE_LOSS: ("value_loss",),
    Metric.REJECTED: ("rejected", "diagnostics"),
}
"""The conventions that may aggregate each metric; ``diagnostics`` aggregates unlisted metrics."""


def convention_of_log(metric: Metric, conventions: Conventions) -> str | None:
    """The convention that aggregates a metric logged alone; None if the mode aggregates it."""
    names = CONVENTIONS_OF_LOGS.get(metric, ("diagnostics",))
    return next((name for name in names if getattr(conventions, name) is not None), None)


def reducer_of_log(metric: Metric, conventions: Conventions) -> AuxiliaryAggregation | None:
    """The aggregation of a term logged alone; None if it is aggregated as the policy loss."""
    name = convention_of_log(metric, conventions)
    if name is None:
        is_of_critic = metric is Metric.VALUE_LOSS
        return AuxiliaryAggregation.WITH_TOKEN_MEAN if is_of_critic else None
    how: AuxiliaryAggregation = getattr(conventions, name)
    return how


CONVENTIONS_OF_MASKS = {
    Metric.ENTROPY: "entropy_mask",
    Metric.KL: "kl_mask",
    Metric.KL_COEFFICIENT: "kl_mask",
}


def convention_of_mask(metric: Metric) -> str | None:
    """The convention that names the mask of a term's mean; None if the metric fixes the mask."""
    if metric in (Metric.POLICY_LOSS, Metric.REJECTED):
        return None
    return CONVENTIONS_OF_MASKS.get(metric, "diagnostics_mask")


def _masked_context(context: StepContext, metric: Metric) -> StepContext:
    """The context of a term, whose mean is over the mask before or after rejection sampling."""
    mask = getattr(context.conventions, convention_of_mask(metric) or "", None)
    is_before = metric is Metric.REJECTED or mask is DenominatorMask.ORIGINAL
    return context.before_rejection() if is_before else context


def logged_terms(context: StepContext, objective: Objective, metric: Metric) -> list[LossTerm]:
    """The terms of a logged number, in the context of a step that an objective is trained on."""
    conventions = context.conventions
    batch = ProbedBatch.make(conventions, context.steps, objective)
    reducer_of = reducer if metric is Metric.LOSS else reducer_of_log
    if metric is not Metric.LOSS:
        plain = replace(conventions, micro_batch_weight=MicroBatchWeight.EQUAL)
        context = replace(context, conventions=plain)
    return [
        LossTerm(
            metric=term,
            context=_masked_context(context, term).of_term(reducer_of(term, conventions)),
            factors=coefficient * batch.split(quantities(term, batch))[context.step_index],
            source=_source(term, batch, context.step_index),
        )
        for term, coefficient in coefficients(metric, objective).items()
    ]


def _source(metric: Metric, batch: ProbedBatch, step_index: int) -> Source | None:
    """The inputs of a logged term's factors, if a framework may compute the factors wrongly."""
    if metric is Metric.KL_COEFFICIENT:
        return batch.adaptive_coefficient
    if metric is Metric.CLIP_FRACTION:
        return PolicyQuantity(of=_clipped, tokens=batch.policy_tokens_of_step(step_index))
    return None


def plain_term(context: StepContext, metric: Metric | Objective = Metric.POLICY_LOSS) -> LossTerm:
    """The term of a step whose factors are all 1, so that its products are the weights."""
    return LossTerm(metric=metric, context=context, factors=np.ones(len(context.step.mask)))


def gradient_terms(context: StepContext, objective: Objective) -> list[LossTerm]:
    """The terms of a trained loss; a term whose derivative is known exactly has factors of 1."""
    batch = ProbedBatch.make(context.conventions, context.steps, objective)
    index = context.step_index
    if objective in SUMS:
        return combined_terms(context, batch.split(batch.dloss_dlogprob)[index], objective)
    if objective is Objective.VALUE_CLIPPED:
        return [clipped_value_term(context)]
    if objective in OFF_POLICY:
        return [off_policy_term(context, objective, batch.policy_tokens_of_step(index))]
    if objective in FROM_REWARDS:
        several = range(len(context.steps))
        uncut = [replace(context, step_index=one, forward_pass_of_token=None) for one in several]
        return [advantage_terms(uncut, objective)[index]]
    term = trained_term(objective)
    return [plain_term(context.of_term(reducer(term, context.conventions)), term)]


def combined_terms(
    context: StepContext, dloss_dlogprob: NDArray[np.float64], objective: Objective
) -> list[LossTerm]:
    """The terms of a combined loss's gradient; factors are derivatives by each token's probe."""
    batch = ProbedBatch.make(context.conventions, context.steps, objective)
    derivatives = {
        Metric.POLICY_LOSS: dloss_dlogprob,
        Metric.ENTROPY: np.ones_like(dloss_dlogprob),
        Metric.KL: batch.split(batch.divergence_derivatives)[context.step_index],
        Metric.VALUE_LOSS: batch.value_tokens_of_step(context.step_index).derivative,
    }
    return [
        LossTerm(
            metric=metric,
            context=_masked_context(context, metric).of_term(reducer(metric, context.conventions)),
            factors=coefficient * derivatives[metric],
        )
        for metric, coefficient in SUMS[objective].items()
    ]


def off_policy_term(context: StepContext, objective: Objective, tokens: PolicyTokens) -> LossTerm:
    """The only term of a policy loss with ratios other than 1: factors are its derivatives."""
    if objective in SELECTING and context.conventions.selected is ComparedTokens.MICRO_BATCH:
        tokens = replace(tokens, batch=context.known_placement.micro_batch_number)
    return LossTerm(
        metric=Metric.POLICY_LOSS,
        context=context,
        factors=DERIVATIVES[objective](tokens, CONSTANTS),
        source=PolicyDerivative(objective=objective, tokens=tokens),
    )


def clipped_value_term(context: StepContext) -> LossTerm:
    """The only term of a critic's loss with clipping: factors are its derivatives."""
    objective = Objective.VALUE_CLIPPED
    batch = ProbedBatch.make(context.conventions, context.steps, objective)
    tokens = batch.value_tokens_of_step(context.step_index)
    return LossTerm(
        metric=Objective.VALUE,
        context=context.of_term(reducer(Objective.VALUE, context.conventions)),
        factors=value_losses.value_clipped(tokens, CONSTANTS.value_clip),
        source=ValueDerivative(tokens=tokens),
    )


def advantage_terms(
    contexts: Sequence[StepContext],
    objective: Objective,
    observed: NDArray[np.float64] | None = None,
) -> list[LossTerm]:
    """The term of each step of a batch whose advantages are computed from rewards.

    ``observed`` are the observed advantages of all steps, [tokens], NaN where they cannot be seen.
    """
    batch = ProbedBatch.make(contexts[0].conventions, contexts[0].steps, objective)
    advantages = BatchAdvantages(
        estimate=_estimate(contexts, batch),
        placement=_placement(contexts, batch),
        observed=observed,
        sign=-1.0,
    )
    ends = np.cumsum([0, *(len(context.step.mask) for context in contexts)])
    of_steps = [
        replace(advantages, tokens=slice(start, end)) for start, end in pairwise(ends.tolist())
    ]
    return [
        LossTerm(
            metric=Metric.POLICY_LOSS,
            context=context,
            factors=source.factors(source.estimate.advantages),
            source=source,
            rounding=source.estimate.rounding[source.tokens],
        )
        for context, source in zip(contexts, of_steps, strict=True)
    ]


def rollout_term(contexts: Sequence[StepContext], objective: Objective, metric: Metric) -> LossTerm:
    """The only term of a number that is logged once per batch, from the contexts of its steps."""
    batch = ProbedBatch.make(contexts[0].conventions, contexts[0].steps, objective)
    placement = _placement(contexts, batch)
    if metric in OF_SAMPLES:
        context = _sample_context(_batch_context(contexts[0], batch, placement))
        return LossTerm(metric=metric, context=context, factors=_OF_SAMPLES[metric](batch))
    conventions = contexts[0].conventions
    if metric is not Metric.ADVANTAGE:
        of_values = conventions.logged_values if metric is Metric.VALUE else None
        context = _batch_context(contexts[0], batch, placement, of_values or LoggedMean())
        return LossTerm(metric=metric, context=context, factors=quantities(metric, batch))
    estimate = _estimate(contexts, batch)
    logged = conventions.logged_advantages or LoggedMean()
    return LossTerm(
        metric=metric,
        context=_batch_context(contexts[0], batch, placement, logged),
        factors=estimate.advantages,
        source=BatchAdvantages(estimate=estimate, placement=placement),
        rounding=estimate.rounding,
    )


def _estimate(contexts: Sequence[StepContext], batch: ProbedBatch) -> Estimate:
    conventions = estimator_conventions(batch.objective, contexts[0].conventions)
    return Estimate(objective=batch.objective, rollouts=rollouts_of(batch), conventions=conventions)


def _batch_context(
    of_step: StepContext,
    batch: ProbedBatch,
    placement: BatchPlacement,
    mean: LoggedMean = LoggedMean(),  # noqa: B008 - it is frozen
) -> StepContext:
    """The context of a mean over a whole batch, with the batch's steps joined to one uncut step."""
    step = Step(
        prompt_lengths=np.concatenate([step.prompt_lengths for step in batch.steps]),
        response_lengths=np.concatenate([step.response_lengths for step in batch.steps]),
        mask=rollouts_of(batch).tokens(mean.tokens),
        groups=batch.groups,
        rollouts=batch.trajectories,
    )
    return replace(
        of_step,
        steps=(step,),
        step_index=0,
        aggregation=Aggregation(mean.mode),
        forward_pass_of_token=_held(placement, of_step.layout),
        rows_of_passes=None,
    )


def _held(placement: BatchPlacement, layout: Layout) -> NDArray[np.int32] | None:
    """The index of the forward pass in which each rank held each token: 0, or -1 if in none."""
    if placement.dp_rank is None or placement.cp_rank is None:
        return None
    holder = placement.dp_rank * layout.cp + placement.cp_rank
    ranks = np.arange(layout.dp * layout.cp)[:, np.newaxis]
    return np.where(holder == ranks, 0, -1).astype(np.int32)


def _sample_context(of_tokens: StepContext) -> StepContext:
    """The context of a mean over per-sample values: each sample has a single token."""
    step, held = of_tokens.step, of_tokens.forward_pass_of_token
    ones = np.ones(step.size, np.int64)
    return replace(
        of_tokens,
        steps=(replace(step, response_lengths=ones, mask=ones.astype(np.bool_)),),
        conventions=replace(of_tokens.conventions, sample_unit=SampleUnit.SAMPLE),
        forward_pass_of_token=None if held is None else held[:, step.offsets[:-1]],
    )


def _placement(contexts: Sequence[StepContext], batch: ProbedBatch) -> BatchPlacement:
    steps = np.repeat(np.arange(len(batch.steps)), [len(step.mask) for step in batch.steps])
    known = [context.placement for context in contexts if context.placement is not None]
    prompts = np.concatenate([step.prompt_lengths for step in batch.steps])
    layout = contexts[0].layout
    if len(known) < len(contexts):
        return BatchPlacement(step=steps, prompt_lengths=prompts, slices=layout.cp)
    cp_ranks = [placement.cp_rank for placement in known]
    if Option.ALLGATHER_CP in layout.options:
        # Each rank's forward pass has one contiguous part of the packed row. Before advantages are
        # computed, the values of response tokens move to the ranks of zigzag slices.
        cp_ranks = [zigzag_rank(step, layout.cp) for step in batch.steps]
    return BatchPlacement(
        step=steps,
        dp_rank=np.concatenate([placement.dp_rank for placement in known]),
        cp_rank=np.concatenate(cp_ranks),
        prompt_lengths=prompts,
        slices=layout.cp,
    )


def quantities(metric: Metric, batch: ProbedBatch) -> NDArray[np.float64]:
    """The per-token quantity from which a metric is reduced: [tokens of the batch]."""
    return _QUANTITIES[metric](batch)


def _policy_losses(batch: ProbedBatch) -> NDArray[np.float64]:
    tokens = batch.policy_tokens
    ratios, within = tokens.ratios, policy_losses.truncated(tokens.ratios, CONSTANTS)
    losses: NDArray[np.float64] = -tokens.advantages * np.where(
        policy_losses.clipped(ratios, tokens, CONSTANTS), within, ratios
    )
    return losses


def _clipped(tokens: PolicyTokens) -> NDArray[np.float64]:
    return policy_losses.clipped(tokens.ratios, tokens, CONSTANTS).astype(np.float64)


def _coefficients(batch: ProbedBatch) -> NDArray[np.float64]:
    """Each token's share in the next KL coefficient, before the coefficient's change is clipped."""
    adaptive = batch.adaptive_coefficient
    rate = adaptive.coefficient * adaptive.samples / (adaptive.horizon * adaptive.target)
    return rate * batch.divergences


def _rejected(batch: ProbedBatch) -> NDArray[np.float64]:
    original, modified = np.concatenate(batch.original_masks), np.concatenate(batch.masks)
    return (original & ~modified).astype(np.float64)


_QUANTITIES: dict[Metric, Quantity] = {
    Metric.POLICY_LOSS: _policy_losses,
    Metric.CLIP_FRACTION: lambda batch: _clipped(batch.policy_tokens),
    Metric.POLICY_KL: lambda batch: np.concatenate(batch.old_log_probs),
    Metric.RATIO: lambda batch: batch.policy_tokens.ratios,
    Metric.ENTROPY: lambda batch: np.concatenate(batch.entropies),
    Metric.KL: lambda batch: batch.divergences,
    Metric.VALUE_LOSS: lambda batch: batch.value_tokens.errors,
    Metric.KL_COEFFICIENT: _coefficients,
    Metric.REJECTED: _rejected,
    Metric.VALUE: lambda batch: np.concatenate(batch.values),
    Metric.REFERENCE_LOG_PROB: lambda batch: np.concatenate(batch.reference_log_probs),
    Metric.DIVERGENCE: lambda batch: rollouts_of(batch).divergences,
}

_OF_SAMPLES: dict[Metric, Quantity] = {
    Metric.REWARD: lambda batch: batch.rewards,
    Metric.RESPONSE_LENGTH: lambda batch: np.array([len(ids) for ids in batch.responses], float),
}
