"""The predictions of every known mistake for a step or a term, the most plausible ones first.

Every weight is 1 / (units · tokens of the unit). A mistake counts wrong tokens, wrong units or only
a part of the step, or multiplies or divides by an unrelated size.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option
from conformance.expected.advantages import BatchAdvantages
from conformance.expected.step_context import of_samples
from conformance.expected.term import PolicyDerivative, ValueDerivative
from conformance.explain.catalogue import miscounts, parts
from conformance.explain.catalogue.advantages import values_of_others, wrong_advantages
from conformance.explain.catalogue.groups import read_off_variances
from conformance.explain.catalogue.losses import wrong_derivatives, wrong_value_derivatives
from conformance.explain.catalogue.missing_tokens import shares
from conformance.explain.catalogue.mistake import INACTIVE, MISTAKES, Kind, Prediction, counting
from reference.aggregation import Aggregation, EmptyUnits, Mode, SampleUnit
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from reference.arrays import Values


EXTRA = {"multiplied": "an extra factor of", "divided": "an extra division by"}


SMALL = 4096
"""The most tokens of a step whose predictions are kept for other checks."""


def predictions(context: StepContext) -> Iterable[Prediction]:
    """The predictions of every mistake that is possible in a step."""
    return _kept(context) if len(context.step.mask) <= SMALL else _predictions(context)


def predictions_of_sums(context: StepContext) -> Iterator[Prediction]:
    """Yield predictions for a sum over all tokens, in which single weights cannot be seen.

    A mean of means of any parts is one mistake of a logged number, "mean_of_means", unless the
    number is meant to be a mean over micro-batches.
    """
    for one in predictions(context):
        if one.kind is Kind.PARTS and not context.per_micro_batch:
            yield replace(one, causes=[*(each.name for each in one.mistakes), "mean_of_means"])
        else:
            yield one
    yield from shares(context)
    yield from parts.averaged_shares(context)
    step = context.step
    if not step.mask.all():
        unmasked = replace(step, mask=np.ones_like(step.mask), original_mask=None)
        steps = [unmasked if one is step else one for one in context.steps]
        yield Prediction(name=INACTIVE, weights=replace(context, steps=tuple(steps)).expected)


@lru_cache(maxsize=512)
def _kept(context: StepContext) -> list[Prediction]:
    return [*_predictions(context)]


@lru_cache(maxsize=64)
def predictions_of_factors(term: LossTerm) -> Sequence[Prediction]:
    """The predictions of wrong factors on the weights of a term, the more common first."""
    return [
        Prediction(name=name, weights=term.context.expected, factors=factors, together=together)
        for name, factors, together in _wrong_factors(term)
    ]


def _wrong_factors(term: LossTerm) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield mistakes with their factors, [tokens], and the names of accompanying mistakes."""
    source, placement = term.source, term.context.placement
    if isinstance(source, PolicyDerivative):
        yield from wrong_derivatives(
            source.objective, source.tokens, term.context.expected, placement
        )
    if isinstance(source, ValueDerivative):
        for name, factors in wrong_value_derivatives(source.tokens):
            yield name, factors, ()
    if isinstance(source, BatchAdvantages):
        for name, found in wrong_advantages(source.estimate, source.placement):
            yield name, source.factors(found), ()
        if source.observed is not None:
            for name, found in read_off_variances(source.estimate, source.observed):
                yield name, source.factors(found), ()
            for name, found, together in values_of_others(
                source.estimate, source.placement, source.observed
            ):
                yield name, source.factors(found), together


def _predictions(context: StepContext) -> Iterator[Prediction]:
    """Yield the predictions of every mistake that is possible in a step.

    Factors that are sizes of the layout come before miscounts. Sizes of the step and widths, which
    small steps match by chance, come last. In a step with a single active token any ratio looks
    like a factor, so miscounts come first.
    """
    yield from parts.filled_up(context)
    yield from miscounts.truncated_counted(context)
    if np.count_nonzero(context.step.mask) == 1:
        yield from miscounts.other_tokens(context)
        yield from miscounts.clamped_shares(context)
        yield from _undivided(context)
    yield from _factors(context, of_layout=True)
    for kind in (
        _undivided,
        miscounts.other_steps,
        miscounts.rejection_left_out,
        miscounts.other_mask,
        miscounts.other_tokens,
        miscounts.empty_micro_batches,
        miscounts.off_by_the_same,
        miscounts.adjacent_prompts,
        _other_modes,
        _other_conventions,
        miscounts.other_units,
        miscounts.filling_rows,
        parts.counted_in_parts,
        parts.carried_over,
        _partial_window,
        miscounts.rounded_counts,
        miscounts.clamped_shares,
        miscounts.rounded_shares,
        miscounts.off_by_one,
    ):
        yield from kind(context)
    yield from _factors(context, of_layout=False)
    yield from miscounts.padded_widths(context)
    yield from _micro_batch_samples(context)


def _micro_batch_samples(context: StepContext) -> Iterator[Prediction]:
    """Yield weights multiplied or divided by the number of samples of each micro-batch."""
    if context.placement is None:
        return
    number = of_samples(context, context.placement.micro_batch_number)
    samples = np.bincount(number)[number].astype(np.float64)[context.sample]
    for verb, factors in (("divided", 1 / samples), ("multiplied", samples)):
        name = f"{verb}_by_micro_batch_samples"
        yield Prediction(name=name, weights=context.expected * factors)


def _partial_window(context: StepContext) -> Iterator[Prediction]:
    """Divides by one micro-batch more than the step has, on layouts with a partial window."""
    count = context.layout.micro_batches
    if not isinstance(count, int):
        count = 0 if context.placement is None else context.most_micro_batches
    if Option.PARTIAL_WINDOW in context.layout.options and count:
        weights = context.expected * (count / (count + 1))
        yield Prediction(name="partial_window_divided_as_whole", weights=weights)


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
    """The number of micro-batches of each rank; None if ranks differ or it is unknown."""
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


def _factors(context: StepContext, *, of_layout: bool) -> Iterator[Prediction]:
    """Yield factors that equal a size of the layout or, unless ``of_layout``, only of the step."""
    layout_sizes = _layout_sizes(context)
    for value, names in _names_of_sizes(layout_sizes | _step_sizes(context)).items():
        if bool(layout_sizes.keys() & set(names)) is of_layout:
            yield from _factor(context, value, names)


def _names_of_sizes(sizes: dict[str, float]) -> dict[float, list[str]]:
    """All names of each size, since weights cannot show which of equal sizes is the factor."""
    names: dict[float, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size != 1:
            names[size].append(name)
    return names


def _factor(context: StepContext, value: float, names: list[str]) -> Iterator[Prediction]:
    layout = context.layout
    # If dp or cp is 1, dp · cp equals the other, and the mistake may be a factor of the product.
    product_too = {"dp", "cp"} & {*names} and layout.dp * layout.cp == value
    may_be = [*names, "dp_cp"] if product_too else names
    for verb, factor in (("divided", 1 / value), ("multiplied", value)):
        yield Prediction(
            name=f"{verb}_by_{'_or_'.join(names)}",
            words=f"{EXTRA[verb]} {' or '.join(names)} = {value:g}",
            weights=context.expected * factor,
            sizes=dict.fromkeys(names, value),
            causes=[f"{verb}_by_{size}" for size in may_be],
        )


def _undivided(context: StepContext) -> Iterator[Prediction]:
    """Yield weights of 1, of 1 averaged over ranks or micro-batches, and of 1 / L."""
    ones = (context.expected > 0).astype(np.float64)
    yield Prediction(name="not_divided", weights=ones)
    for value, names in _names_of_sizes(_layout_sizes(context)).items():
        over = f"except for an average over {' or '.join(names)} = {value:g}"
        words = f"{MISTAKES['not_divided'].says}, {over}"
        yield Prediction(name="not_divided", words=words, weights=ones / value)
    if context.aggregation.divisor is not None:
        yield Prediction(name="samples_not_averaged", weights=ones / context.aggregation.divisor)


def _other_modes(context: StepContext) -> Iterator[Prediction]:
    """Yield the weights of all modes except the job's own."""
    for mode in Mode:
        if mode not in (context.mode, Mode.CONSTANT):
            weights = token_weights(context.step, Aggregation(mode), context.conventions)
            yield Prediction(name=f"weights_of_{mode}", weights=weights)
    if context.mode is not Mode.TOKEN_MEAN:
        per_token = replace(context, aggregation=Aggregation(Mode.TOKEN_MEAN))
        counts = per_token.tokens_if(np.maximum(per_token.counted, 1))
        yield counting(per_token, "weights_of_token_mean_counting_empty_samples", counts)


def _other_conventions(context: StepContext) -> Iterator[Prediction]:
    """Yield the weights under conventions that the framework does not declare."""
    declared = context.conventions
    for unit, empty in product(SampleUnit, EmptyUnits):
        other = replace(declared, sample_unit=unit, empty_units=empty)
        if other != declared:
            weights = token_weights(context.step, context.aggregation, other)
            yield Prediction(name=f"{unit}_units_{empty}", weights=weights)
