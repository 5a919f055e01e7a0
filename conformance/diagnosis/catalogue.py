"""The known mistakes, each with the weights it would give.

A mistake is a way of counting: other tokens, other units, a part of the step, or the right count
multiplied or divided by a size that has nothing to do with it. What the mistakes have in common is
one formula, 1 / (units · tokens of the unit), of which each gets one factor wrong.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.diagnosis.miscounts import (
    off_by_the_same,
    other_mask,
    other_prompts,
    other_steps,
    other_tokens,
    other_units,
    rounded_counts,
)
from conformance.diagnosis.mistake import Mistake
from conformance.diagnosis.parts import filled_up, parts
from reference.aggregation import (
    Aggregation,
    EmptyUnits,
    Mode,
    SampleUnit,
)
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.diagnosis.step_context import StepContext


def mistakes(context: StepContext) -> Iterator[Mistake]:
    """Every one that is possible here, those that explain most plainly first.

    A size of the layout comes before another way of counting, and that before a size of the step,
    which small steps hit by chance. A single active token has one weight alone, which tells a
    factor from nothing: there, other ways of counting come first.
    """
    yield from filled_up(context)
    if np.count_nonzero(context.step.mask) == 1:
        yield from other_tokens(context)
        yield from _undivided(context)
    yield from _layout_factors(context)
    yield from _undivided(context)
    yield from other_steps(context)
    yield from other_mask(context)
    yield from other_tokens(context)
    yield from off_by_the_same(context)
    yield from other_prompts(context)
    yield from _other_modes(context)
    yield from _other_conventions(context)
    yield from other_units(context)
    yield from parts(context)
    yield from rounded_counts(context)
    yield from _step_factors(context)


def _layout_sizes(context: StepContext) -> dict[str, float]:
    layout = context.layout
    sizes: dict[str, float] = {"dp": layout.dp, "cp": layout.cp}
    if layout.dp > 1 and layout.cp > 1:
        sizes["dp_cp"] = layout.dp * layout.cp
    micro_batches = _micro_batches_per_rank(context)
    if micro_batches is not None:
        sizes["micro_batches"] = micro_batches
    return sizes


def _micro_batches_per_rank(context: StepContext) -> int | None:
    """How many the ranks have, if they have equally many."""
    if isinstance(context.layout.micro_batches, int):
        return context.layout.micro_batches
    if context.placement is None:
        return None
    counts = np.unique(context.placement.micro_batches)
    return int(counts[0]) if len(counts) == 1 else None


def _step_sizes(context: StepContext) -> dict[str, float]:
    step = context.step
    rollouts = [len(np.unique(step.rollouts[step.groups == g])) for g in np.unique(step.groups)]
    sizes: dict[str, float] = {
        "group_size": max(rollouts),
        "prompts": len(rollouts),
        "samples": step.size,
    }
    if context.aggregation.divisor is not None:
        sizes["divisor"] = context.aggregation.divisor
    return sizes


def _layout_factors(context: StepContext) -> Iterator[Mistake]:
    """A factor that is a size of the layout, and perhaps one of the step as well."""
    layout_sizes = _layout_sizes(context)
    for value, names in _alike(layout_sizes | _step_sizes(context)).items():
        if layout_sizes.keys() & set(names):
            yield from _factor(context, value, names)


def _step_factors(context: StepContext) -> Iterator[Mistake]:
    """A factor that is a size of the step and none of the layout."""
    layout_sizes = _layout_sizes(context)
    for value, names in _alike(layout_sizes | _step_sizes(context)).items():
        if not layout_sizes.keys() & set(names):
            yield from _factor(context, value, names)


def _alike(sizes: dict[str, float]) -> dict[float, list[str]]:
    """The names of each size: which of them was meant, no weight can tell."""
    names: dict[float, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size != 1:
            names[size].append(name)
    return names


def _factor(context: StepContext, value: float, names: list[str]) -> Iterator[Mistake]:
    for verb, factor in (("divided", 1 / value), ("multiplied", value)):
        yield Mistake(
            name=f"{verb}_by_{'_or_'.join(names)}",
            words=f"{verb} once too often by {' or '.join(names)} = {value:g}",
            weights=context.expected * factor,
            sizes=dict.fromkeys(names, value),
        )


def _undivided(context: StepContext) -> Iterator[Mistake]:
    """Every token weighs 1, or what averaging over ranks or micro-batches makes of 1."""
    ones = (context.expected > 0).astype(np.float64)
    words = "token losses are added up and not divided"
    yield Mistake(name="not_divided", words=words, weights=ones)
    for value, names in _alike(_layout_sizes(context)).items():
        averaged = f"{words}, but for an average over {' or '.join(names)} = {value:g}"
        yield Mistake(name="not_divided", words=averaged, weights=ones / value)


def _other_modes(context: StepContext) -> Iterator[Mistake]:
    """The weights of a mode that was not asked for."""
    for mode in Mode:
        if mode not in (context.mode, Mode.CONSTANT):
            weights = token_weights(context.step, Aggregation(mode), context.conventions)
            words = f"these are the weights of {mode}"
            yield Mistake(name=f"weights_of_{mode}", words=words, weights=weights)
    if context.mode is not Mode.TOKEN_MEAN:
        per_token = replace(context, aggregation=Aggregation(Mode.TOKEN_MEAN))
        counts = per_token.tokens_if(np.maximum(per_token.counted, 1))
        yield Mistake(
            name="weights_of_token_mean_counting_empty_samples",
            words="these are the weights of token_mean with an empty sample counted as one token",
            weights=per_token.weights(counts),
        )


def _other_conventions(context: StepContext) -> Iterator[Mistake]:
    """What the framework declares not to do."""
    declared = context.conventions
    for unit, empty in product(SampleUnit, EmptyUnits):
        other = replace(declared, sample_unit=unit, empty_units=empty)
        if other != declared:
            yield Mistake(
                name=f"{unit}_units_{empty}",
                words=f"{unit}s are the units and empty ones are {empty}",
                weights=token_weights(context.step, context.aggregation, other),
            )
