"""Predicts the effect of a mistake at a recipe's own samples, ranks and micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from conformance.expected.placement import passes_in_order
from conformance.expected.step_context import StepContext
from conformance.explain.catalogue.predictions import predictions
from conformance.findings.agreement import direction
from conformance.findings.cause import Impact, Range
from reference.step import Sample, Step

if TYPE_CHECKING:
    from adapters.contract import Layout
    from adapters.contract.recipe import Recipe
    from conformance.recipes.matching import Match
    from reference.aggregation import Aggregation, Conventions

MOST_SAMPLES, MOST_TOKENS = 1024, 512
"""The size of the largest simulated step: larger ones have about the same relative effects."""

SPREAD = 1.0
"""Standard deviation of the logarithm of lengths, as in the corpus' production step."""


def effect(mistake: str, recipe: Recipe, match: Match, conventions: Conventions) -> Impact:
    """The effect that the catalogue predicts; empty without predictions, or if these disagree."""
    found = _effects(
        recipe.samples,
        recipe.per_prompt,
        max(recipe.steps, 1),
        _cut(recipe),
        match.aggregation,
        conventions,
    ).get(mistake, [])
    scales = [scale for scale, _ in found]
    if not scales or max(scales) > 1.5 * min(scales) or min(scales) <= 0:
        return Impact()
    return Impact(scale=Range.of(scales), cosine=Range.of(cosine for _, cosine in found))


def _cut(recipe: Recipe) -> Layout:
    """The layout reduced to the dimensions that can have separate denominators."""
    layout = replace(recipe.layout, tp=1, pp=1, options=())
    return replace(layout, micro_batches=recipe.generations) if recipe.generations > 1 else layout


@lru_cache(maxsize=8)
def _effects(
    samples: int,
    per_prompt: int,
    steps: int,
    layout: Layout,
    aggregation: Aggregation,
    conventions: Conventions,
) -> dict[str, list[tuple[float, float]]]:
    """Scale and cosine of the gradients of each mistake, relative to the right gradient."""
    made = tuple(_step(samples, per_prompt, seed) for seed in range(min(steps, 4)))
    context = StepContext(
        steps=made,
        step_index=0,
        aggregation=aggregation,
        conventions=conventions,
        layout=layout,
        forward_pass_of_token=passes_in_order(made[0], layout),
    )
    found: dict[str, list[tuple[float, float]]] = {}
    for one in predictions(context):
        scale, cosine = direction(one.weights, context.expected)
        if scale is not None and cosine is not None:
            for mistake in one.mistakes:
                found.setdefault(mistake.name, []).append((scale, cosine))
    return found


def _step(samples: int, per_prompt: int, seed: int) -> Step:
    """An ordinary step: lengths are quantiles of a log-normal distribution, in a mixed order."""
    size = min(samples, MOST_SAMPLES)
    lengths = NormalDist(math.log(MOST_TOKENS / 8), SPREAD)
    order = np.random.default_rng(seed).permutation(size)
    return Step.of(
        [
            Sample(
                prompt_length=1,
                loss_mask=np.ones(_length(lengths, (place + 0.5) / size, seed), dtype=bool),
                group=index // per_prompt,
            )
            for index, place in enumerate(order)
        ]
    )


def _length(lengths: NormalDist, quantile: float, seed: int) -> int:
    """A length in tokens, a tenth longer for each further ``seed``."""
    return max(1, min(MOST_TOKENS, round(math.exp(lengths.inv_cdf(quantile)) * (1 + 0.1 * seed))))
