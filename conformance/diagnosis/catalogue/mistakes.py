"""The known mistakes, each with the weights it would give.

Every weight is 1 / (units · tokens of the unit), and a mistake gets one factor wrong: it counts
other tokens, other units or a part of the step, or multiplies or divides by an unrelated size.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.diagnosis.catalogue.miscounts import (
    clamped_shares,
    filling_rows,
    off_by_one,
    off_by_the_same,
    other_mask,
    other_prompts,
    other_steps,
    other_tokens,
    other_units,
    rejection_left_out,
    rounded_counts,
    rounded_shares,
)
from conformance.diagnosis.catalogue.missing_tokens import shares
from conformance.diagnosis.catalogue.mistake import Mistake
from conformance.diagnosis.catalogue.parts import (
    averaged_shares,
    carried_over,
    filled_up,
    parts,
)
from conformance.diagnosis.catalogue.widths import padded_widths
from reference.aggregation import Aggregation, EmptyUnits, Mode, SampleUnit
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.expected.step_context import StepContext


SMALL = 4096
"""Tokens of the largest step whose mistakes are kept for other checks."""


def mistakes(context: StepContext) -> Iterable[Mistake]:
    """Every mistake that is possible in a step, the most plausible ones first."""
    return _kept(context) if len(context.step.mask) <= SMALL else _mistakes(context)


def mistakes_of_sums(context: StepContext) -> Iterator[Mistake]:
    """Yield every mistake in a sum over all tokens, of which single ones cannot be seen.

    Means of different parts of a step are one mistake in a number that is logged.
    """
    for mistake in mistakes(context):
        if mistake.name.startswith("denominators_per_"):
            yield replace(mistake, causes=[*mistake.names, "mean_of_means"])
        else:
            yield mistake
    yield from shares(context)
    yield from averaged_shares(context)
    step = context.step
    if not step.mask.all():
        unmasked = replace(step, mask=np.ones_like(step.mask), original_mask=None)
        steps = [unmasked if one is step else one for one in context.steps]
        yield Mistake(
            name="inactive_tokens_weigh",
            words="tokens that the mask excludes are counted and added up too",
            weights=replace(context, steps=tuple(steps)).expected,
        )


@lru_cache(maxsize=512)
def _kept(context: StepContext) -> list[Mistake]:
    return [*_mistakes(context)]


def _mistakes(context: StepContext) -> Iterator[Mistake]:
    """Yield every mistake that is possible in a step.

    A size of the layout comes before another way of counting, and sizes of the step and widths,
    which small steps hit by chance, come last. With a single active token, any ratio looks like a
    factor: there, other ways of counting come first.
    """
    yield from filled_up(context)
    if np.count_nonzero(context.step.mask) == 1:
        yield from other_tokens(context)
        yield from clamped_shares(context)
        yield from _undivided(context)
    yield from _factors(context, of_layout=True)
    for kind in (
        _undivided,
        other_steps,
        rejection_left_out,
        other_mask,
        other_tokens,
        off_by_the_same,
        other_prompts,
        _other_modes,
        _other_conventions,
        other_units,
        filling_rows,
        parts,
        carried_over,
        rounded_counts,
        clamped_shares,
        rounded_shares,
        off_by_one,
    ):
        yield from kind(context)
    yield from _factors(context, of_layout=False)
    yield from padded_widths(context)


def _layout_sizes(context: StepContext) -> dict[str, float]:
    layout = context.layout
    sizes: dict[str, float] = {"dp": layout.dp, "cp": layout.cp, "pp": layout.pp}
    if layout.dp > 1 and layout.cp > 1:
        sizes["dp_cp"] = layout.dp * layout.cp
    micro_batches = _micro_batches_per_rank(context)
    if micro_batches is not None:
        sizes["micro_batches"] = micro_batches
    return sizes


def _micro_batches_per_rank(context: StepContext) -> int | None:
    """Micro-batches of each rank, None if the ranks differ."""
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


def _factors(context: StepContext, *, of_layout: bool) -> Iterator[Mistake]:
    """Yield factors that are a size of the layout, or of the step alone."""
    layout_sizes = _layout_sizes(context)
    for value, names in _names_of_sizes(layout_sizes | _step_sizes(context)).items():
        if bool(layout_sizes.keys() & set(names)) is of_layout:
            yield from _factor(context, value, names)


def _names_of_sizes(sizes: dict[str, float]) -> dict[float, list[str]]:
    """All names of each size, as weights cannot tell which of them was meant."""
    names: dict[float, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size != 1:
            names[size].append(name)
    return names


def _factor(context: StepContext, value: float, names: list[str]) -> Iterator[Mistake]:
    layout = context.layout
    # Where one of them is 1, dp · cp is the other, and a cause may be the product elsewhere.
    product_too = {"dp", "cp"} & {*names} and layout.dp * layout.cp == value
    may_be = [*names, "dp_cp"] if product_too else names
    for verb, factor in (("divided", 1 / value), ("multiplied", value)):
        yield Mistake(
            name=f"{verb}_by_{'_or_'.join(names)}",
            words=f"{verb} once too often by {' or '.join(names)} = {value:g}",
            weights=context.expected * factor,
            sizes=dict.fromkeys(names, value),
            causes=[f"{verb}_by_{size}" for size in may_be],
        )


def _undivided(context: StepContext) -> Iterator[Mistake]:
    """Yield weights of 1, of 1 averaged over ranks or micro-batches, or of 1 / L."""
    ones = (context.expected > 0).astype(np.float64)
    words = "token losses are added up and not divided"
    yield Mistake(name="not_divided", words=words, weights=ones)
    for value, names in _names_of_sizes(_layout_sizes(context)).items():
        averaged = f"{words}, but for an average over {' or '.join(names)} = {value:g}"
        yield Mistake(name="not_divided", words=averaged, weights=ones / value)
    if context.aggregation.divisor is not None:
        yield Mistake(
            name="samples_not_averaged",
            words=f"the sums of {context.units} samples are divided by L alone and added up",
            weights=ones / context.aggregation.divisor,
        )


def _other_modes(context: StepContext) -> Iterator[Mistake]:
    """Yield the weights of the modes that were not asked for."""
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
    """Yield the weights under conventions that the framework does not declare."""
    declared = context.conventions
    for unit, empty in product(SampleUnit, EmptyUnits):
        other = replace(declared, sample_unit=unit, empty_units=empty)
        if other != declared:
            yield Mistake(
                name=f"{unit}_units_{empty}",
                words=f"{unit}s are the units and empty ones are {empty}",
                weights=token_weights(context.step, context.aggregation, other),
            )
