"""A recipe in plain words: the weight of a token, its losses and its logged numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.objective import (
    CORRECTIONS,
    OF_ROLLOUTS,
    OF_SAMPLES,
    WITH_REJECTION,
    Metric,
    Objective,
)
from conformance.comparing.reductions import Declared, Reduction, alike_elsewhere
from conformance.corpus.cases import CORPUS, REJECTION
from conformance.expected.estimators import estimator_conventions
from conformance.expected.loss_terms import reducer_of_log
from conformance.explain.conditions.wording import counted, spelt
from conformance.worked.factors import raw_advantage
from reference.aggregation import AuxiliaryAggregation, DenominatorMask, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Layout
    from adapters.contract.framework import Framework
    from adapters.contract.recipe import Recipe
    from conformance.findings.report import Report
    from conformance.recipes.matching import Match
    from reference.aggregation import Conventions

TYPICAL = 512
"""Assumed mean length of responses in tokens, if a recipe does not limit it."""

WEIGHTS = {
    Mode.TOKEN_MEAN: "1/M, where M counts the active tokens of the step: all weigh the same",
    Mode.SAMPLE_MEAN: (
        "1/(N·m), where N counts the samples of the step and m the active tokens of its sample:"
        " tokens of long responses weigh less"
    ),
    Mode.PROMPT_MEAN: (
        "1/(P·m), where P counts the prompts of the step and m the active tokens of all samples of"
        " its prompt"
    ),
    Mode.CONSTANT: "1/(L·N), where L is a constant and N counts the samples of the step",
}

METRICS = {
    Metric.POLICY_LOSS: "the policy loss",
    Metric.LOSS: "the whole loss",
    Metric.CLIP_FRACTION: "the share of tokens whose ratio is clipped",
    Metric.POLICY_KL: "old minus new log-probability",
    Metric.RATIO: "the ratio of the new to the old policy",
    Metric.ENTROPY: "the entropy of the policy",
    Metric.KL: "the divergence from the reference policy",
    Metric.VALUE_LOSS: "the critic's loss",
    Metric.KL_COEFFICIENT: "the coefficient of the divergence",
    Metric.REJECTED: "the share of tokens that a correction removes",
    Metric.REWARD: "the reward",
    Metric.RESPONSE_LENGTH: "the length of responses",
    Metric.ADVANTAGE: "the advantage",
    Metric.VALUE: "the critic's value",
    Metric.REFERENCE_LOG_PROB: "the reference policy's log-probability",
    Metric.DIVERGENCE: "the divergence from the reference policy, in rollouts",
}
"""The quantity that each logged number is the mean of."""

MEANS = {
    AuxiliaryAggregation.WITH_TOKEN_MEAN: "a mean over tokens or samples, as the loss",
    AuxiliaryAggregation.WITH_POLICY_LOSS: "reduced as the policy loss",
    AuxiliaryAggregation.SAMPLE_MEAN: "a mean over samples of their means over tokens",
    AuxiliaryAggregation.TOKEN_MEAN: "a mean over all active tokens of a step",
    AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN: "a mean of the micro-batches' means over tokens",
    AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN: "a mean of the micro-batches' means over samples",
}


def weight(recipe: Recipe, match: Match, record: Framework) -> Iterator[str]:
    """Yield sentences on the weight of a token, with the numbers of the recipe's own step."""
    mode = match.aggregation.mode
    yield f"A token weighs {WEIGHTS[mode]}."
    prompts = max(recipe.samples // recipe.per_prompt, 1)
    yield (
        f"An optimizer step has {recipe.samples:,} samples of {counted(prompts, 'prompt')}, on"
        f" {_parallelism(recipe.layout)}; a batch of rollouts has"
        f" {counted(recipe.steps, 'optimizer step')}."
    )
    if mode is Mode.CONSTANT:
        yield f"Here that is 1/{recipe.samples * (_divisor(recipe, match, record) or 1):,}."
        return
    length = max((recipe.longest or 2 * TYPICAL) // 2, 1)
    yield (
        f"If a response has {length:,} active tokens on average, that is about"
        f" 1/{recipe.samples * length:,}."
    )


def _parallelism(layout: Layout) -> str:
    """The ranks of each kind, and how a rank cuts its part of a step."""
    kinds = [f"{name} {getattr(layout, name)}" for name in ("dp", "cp", "tp", "pp")]
    several = [one for one in kinds if not one.endswith(" 1")]
    cut = layout.micro_batches
    parts = f"micro-batches by {cut}" if isinstance(cut, str) else counted(cut, "micro-batch", "es")
    return f"{', '.join(several) or 'one rank'}, in {parts} each"


def _divisor(recipe: Recipe, match: Match, record: Framework) -> int | None:
    """The divisor L: the recipe's value of the option for L, or else the record's divisor."""
    text, chosen = record.modes[match.reduction]
    sized = [recipe.values.get(name) for name, value in chosen.items() if callable(value)]
    known = [int(value) for value in sized if isinstance(value, int | float) and value]
    return known[0] if known else int(float(text.partition(":")[2] or 0)) or None


def elsewhere(report: Report, match: Match, record: Framework) -> Iterator[str]:
    """Yield the reductions of other frameworks that weigh every token as the recipe does."""
    conventions = report.conventions
    found = Declared(
        version=report.source.version or "",
        modes={match.reduction: record.modes[match.reduction][0]},
        sample_unit=conventions.sample_unit,
        empty_units=conventions.empty_units,
        denominator_mask=conventions.denominator_mask,
    )
    here = Reduction(place=report.adapter, name=match.reduction, declared=found)
    cases = (*CORPUS, *REJECTION) if _has_correction(match) else CORPUS
    yield from map(str, alike_elsewhere(here, cases))


def _has_correction(match: Match) -> bool:
    """Whether a recipe masks tokens by a correction; denominators may still count them."""
    return match.policy in (*CORRECTIONS, *WITH_REJECTION)


def losses(match: Match, conventions: Conventions) -> Iterator[str]:
    """Yield sentences on the policy loss, the advantages and the other loss terms."""
    name = "PPO's clipped" if match.policy is Objective.OFF_POLICY else f"the {spelt(match.policy)}"
    yield f"Policy loss: {name} loss."
    if _has_correction(match) and conventions.denominator_mask is DenominatorMask.ORIGINAL:
        yield "Tokens that a correction masks stay in the denominators."
    if match.estimator is not None:
        declared = estimator_conventions(match.estimator, conventions)
        yield f"Advantage: {raw_advantage(match.estimator, declared)}."
    else:
        yield "Advantage: by an estimator that no check has the formula of."
    terms = [f"{spelt(one)} term" for one in match.terms]
    yield f"Besides: {', '.join(terms) or 'nothing'}."


def meaning(metric: Metric, conventions: Conventions) -> str:
    """The quantity that a logged number measures, and how it is averaged."""
    if metric in OF_ROLLOUTS:
        over = "samples" if metric in OF_SAMPLES else "tokens"
        return f"{METRICS[metric]}: a mean over the {over} of a batch of rollouts"
    if metric is Metric.LOSS:
        return f"{METRICS[metric]}: the sum of its terms, each reduced as it is trained"
    how = reducer_of_log(metric, conventions)
    return f"{METRICS[metric]}: {MEANS[how] if how else 'reduced as the policy loss is'}"
