"""Mistakes of counting or averaging within a rank, micro-batch or context-parallel slice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option
from conformance.expected.placement import FilledRows
from conformance.expected.step_context import StepContext, by_samples, units_held
from conformance.explain.catalogue.miscounts import counted_mask
from conformance.explain.catalogue.mistake import Prediction, counting
from reference.aggregation import EmptyUnits, MicroBatchWeight, Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from adapters.contract import Layout
    from conformance.expected.placement import TokenPlacement
    from reference.arrays import Integers, Mask, Values


FILLINGS = {
    "repeated_rows_averaged": "samples repeated to fill up ranks are averaged in as zeros",
    "dummy_rows_averaged": (
        "rows that pad a micro-batch to the rank's largest are averaged in as zeros"
    ),
    "padding_micro_batches_averaged": (
        "padding micro-batches are averaged in as zeros, in means over {most} of each rank"
    ),
}
"""The mistakes of counting padding or repeated rows in a mean over micro-batches, in words."""


def filled_up(context: StepContext) -> Iterator[Prediction]:
    """Counts one or two kinds of padding or repeated rows in a mean over micro-batches."""
    if context.placement is None or not context.per_micro_batch:
        return
    rows = context.filled_rows or unfilled(context, context.placement)
    active = context.expected > 0
    shares: dict[tuple[str, ...], Values] = {(): np.ones(len(active))}
    for counted in chain(combinations(FILLINGS, 1), combinations(FILLINGS, 2)):
        shares[counted] = share = _share_left(context, context.placement, rows, counted)
        fewer = combinations(counted, len(counted) - 1)
        if all((share != shares[one])[active].any() for one in fewer):
            words = ", and ".join(FILLINGS[name] for name in counted)
            yield Prediction(
                name=counted[0],
                words=words.format(most=rows.most_micro_batches),
                weights=context.expected * share,
                together=counted[1:],
            )


def unfilled(context: StepContext, placement: TokenPlacement) -> FilledRows:
    """The numbers of rows trained together with each token, if no row repeats a sample."""
    of_micro_batch = units_held(context.sample, placement.micro_batch_number)
    largest = np.zeros(context.layout.dp)
    np.maximum.at(largest, placement.dp_rank, of_micro_batch)
    return FilledRows(
        of_micro_batch=of_micro_batch,
        of_largest=largest[placement.dp_rank],
        of_rank=units_held(context.sample, placement.dp_rank),
        micro_batches=placement.micro_batches,
        most_micro_batches=context.most_micro_batches,
    )


def _share_left(
    context: StepContext, placement: TokenPlacement, rows: FilledRows, counted: Collection[str]
) -> Values:
    """The share of each token's weight that is left if the given `FILLINGS` count: [tokens]."""
    repeated, dummies, padding = (name in counted for name in FILLINGS)
    samples = units_held(context.sample, placement.micro_batch_number)
    own = rows.micro_batches if repeated else placement.micro_batches
    left = own / (own + padding * (rows.most_micro_batches - rows.micro_batches))
    if context.mode is Mode.SAMPLE_MEAN:
        averaged = rows.of_micro_batch if repeated else samples
        left *= samples / (averaged + dummies * (rows.of_largest - rows.of_micro_batch))
    if context.conventions.micro_batch_weight is MicroBatchWeight.EQUAL:
        left *= placement.micro_batches / own
    elif repeated:
        of_rank = units_held(context.sample, placement.dp_rank)
        left *= (rows.of_micro_batch / rows.of_rank) / (samples / of_rank)
    return left


def averaged_shares(context: StepContext) -> Iterator[Prediction]:
    """Averages the shares of all ranks' micro-batches, including padding micro-batches."""
    if context.placement is None:
        return
    rows = context.filled_rows or unfilled(context, context.placement)
    whole = rows.most_micro_batches + (Option.PARTIAL_WINDOW in context.layout.options)
    windows = context.step.size // context.layout.dp // whole
    if not isinstance(context.layout.micro_batches, int) and windows > 1:
        words = (
            f"the sum is divided by {windows}, as many optimizer steps as {context.step.size}"
            " samples would make in micro-batches of one"
        )
        weights = context.expected / windows
        yield Prediction(name="windows_counted_by_samples", words=words, weights=weights)
    averaged = context.layout.dp * context.layout.cp * rows.most_micro_batches
    if averaged > 1:
        yield Prediction(name="shares_of_all_ranks_averaged", weights=context.expected / averaged)


def counted_in_parts(context: StepContext) -> Iterator[Prediction]:
    """Counts within a rank, micro-batch or context-parallel slice instead of within the step."""
    if context.placement is None:
        return
    for part in _cut_into(context.placement, context.layout):
        if np.max(part.count) > 1:
            yield from _of_parts(context, part)


@dataclass(frozen=True, eq=False)
class _Part:
    """One way to divide a step into parts."""

    name: str
    label: Integers
    """Index of the part that holds each token: [tokens]."""

    whole: Integers
    """Index of the part joined with the slices of its sequences on other ranks: [tokens]."""

    count: Integers | int
    """Number of parts over which means are averaged: [tokens] or one number for all tokens."""

    slices: int = 1
    """Number of parts into which a sequence is sliced."""

    same: tuple[str, ...] = ()
    """Names of other ways to divide a step that give the same parts on this layout."""

    def prediction(self, what: str, weights: Values) -> Prediction:
        """The prediction of a mistake that counts within these parts."""
        causes = [f"{what}_per_{name}" for name in (self.name, *self.same)]
        return Prediction(name=causes[0], weights=weights, causes=causes)


def _cut_into(placement: TokenPlacement, layout: Layout) -> Iterator[_Part]:
    dp, cp = placement.dp_rank, placement.cp_rank
    micro_batch = placement.micro_batch_number
    ranks, slices = layout.dp, layout.cp
    micro_batches = ranks * placement.micro_batches
    most = int(micro_batches.max())
    sliced = () if slices > 1 else ("cp_slice",)
    joined = () if ranks > 1 else ("micro_batch_of_all_ranks",)
    same = (*(f"{name}_of_a_micro_batch" for name in sliced), *joined)
    yield _Part("rank", dp, dp, ranks, same=sliced)
    yield _Part("micro_batch", micro_batch, micro_batch, micro_batches, same=same)
    if (micro_batches < most).any():  # ranks with fewer get padding micro-batches
        yield _Part("micro_batch_or_padding", micro_batch, micro_batch, most)
    if ranks > 1:
        of_all_ranks = placement.micro_batch
        yield _Part("micro_batch_of_all_ranks", of_all_ranks, of_all_ranks, most // ranks)
    if slices > 1:
        yield _Part("cp_slice", dp * slices + cp, dp, ranks * slices, slices)
        in_micro_batch, count = micro_batch * slices + cp, micro_batches * slices
        yield _Part("cp_slice_of_a_micro_batch", in_micro_batch, micro_batch, count, slices)


def _of_parts(context: StepContext, part: _Part) -> Iterator[Prediction]:
    """Counts tokens, units or both within parts, and averages over the parts."""
    unit = context.unit[context.sample]
    units = units_held(unit, part.whole)
    if context.conventions.empty_units is EmptyUnits.EXCLUDED:
        units = _units_with_tokens(context, unit, part.whole)
    tokens, is_micro_batch = None, part.name == "micro_batch"
    if context.mode is not Mode.CONSTANT:
        tokens = _tokens_held(unit, part.label, counted_mask(context))
        yield from _of_tokens_held(context, part, tokens)
        if is_micro_batch and context.mode is Mode.TOKEN_MEAN:
            by_their_samples = by_samples(context, context.known_placement)
            yield counting(
                context, "denominators_per_micro_batch_by_samples", tokens, by_their_samples
            )
        if is_micro_batch and context.mode is not Mode.PROMPT_MEAN:
            yield from _averaged_by_tokens(context, part)
    yield part.prediction("denominators", context.weights(tokens, units * part.count))
    if is_micro_batch and context.mode is not Mode.PROMPT_MEAN:
        yield from _means_added_up(context, part, tokens)


def _means_added_up(
    context: StepContext, part: _Part, tokens: Values | None
) -> Iterator[Prediction]:
    """Sums micro-batch means.

    In some predictions the means are over all samples, in others over samples with active tokens.
    """
    unit = context.unit[context.sample]
    every = units_held(unit, part.label)
    with_tokens = _units_with_tokens(context, unit, part.label)
    differ = (with_tokens != every).any()
    for units in (every, with_tokens)[: 1 + differ]:
        for ranks in sorted({1, context.layout.dp}):
            yield counting(context, "micro_batch_means_added_up", tokens, units * ranks)


def _units_with_tokens(context: StepContext, unit: Integers, label: Integers) -> Values:
    """For each counted token, the number of units with counted tokens in its part: [tokens].

    For tokens that do not count, it is the number of all units in the part.
    """
    counted = counted_mask(context)
    units = units_held(unit, label)
    if counted.any():
        units[counted] = units_held(unit[counted], label[counted])
    return units


def _of_tokens_held(context: StepContext, part: _Part, tokens: Values) -> Iterator[Prediction]:
    """Counts tokens within parts and units in the step; the parts' means are summed or averaged.

    If no part cuts a sample or prompt, averaging is a plain factor, which is a mistake of its own.
    """
    added = context.weights(tokens)
    yield part.prediction("tokens_counted", added)
    if context.mode is not Mode.TOKEN_MEAN and np.array_equal(added, context.weights()):
        return
    for count in {int(np.max(part.count)), part.slices} - {1}:
        weights = context.weights(tokens, float(context.units * count))
        yield part.prediction("denominators", weights)


def _averaged_by_tokens(context: StepContext, part: _Part) -> Iterator[Prediction]:
    """Averages micro-batch losses, weighted by tokens, instead of summing them.

    Each loss is first multiplied by the divisor of gradients: the micro-batches of all ranks, or
    only the ranks.
    """
    mask = counted_mask(context)
    held = np.bincount(part.label, weights=mask)[part.label] / max(mask.sum(), 1)
    for count in (part.count, context.layout.dp):
        yield Prediction(name="shares_averaged_by_tokens", weights=context.expected * held * count)


def carried_over(context: StepContext) -> Iterator[Prediction]:
    """Starts a step with leftover micro-batches of a short batch, and drops the step's last ones.

    The short batch has one micro-batch per rank, made of the first samples, with a mean of its own.
    """
    placement, layout = context.placement, context.layout
    if Option.SHORT_BATCH not in layout.options or placement is None:
        return
    size = int(layout.dp * max(context.step.size // (layout.dp * placement.micro_batches.max()), 1))
    empty_count = context.conventions.empty_units is EmptyUnits.COUNTED
    by_tokens = context.mode is Mode.TOKEN_MEAN
    counted = context.counted if by_tokens else (context.counted > 0) | empty_count
    if context.mode in (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN) and counted[:size].any():
        in_time = placement.micro_batch < placement.micro_batches - 1
        before = (context.sample < size) * counted.sum() / counted[:size].sum()
        weights = context.expected * (in_time + before)
        yield Prediction(name="micro_batches_carried_over", weights=weights)


def _tokens_held(unit: Integers, label: Integers, mask: Mask) -> Values:
    """For each token, the number of tokens in ``mask`` in both its unit and its part: [tokens]."""
    place = unit * (int(label.max()) + 1) + label
    tokens: Values = np.bincount(place, weights=mask)[place]
    return tokens
