"""Mistakes in counting: wrong tokens, padding, wrong units, another step, or a coarse dtype."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.expected.step_context import of_samples, truncated_samples
from conformance.explain.catalogue.mistake import Prediction, counting
from reference.aggregation import DenominatorMask, EmptyUnits, Mode
from reference.weights import counted_tokens, token_weights, unit_of_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.expected.step_context import StepContext
    from reference.arrays import Integers, Mask, Values


COARSE_DTYPES = {"bfloat16": (8, 3.4e38), "float16": (11, 65504.0)}
"""Number of significant bits and largest finite number of each dtype."""


def counting_all(context: StepContext, name: str, tokens: float, words: str) -> Prediction:
    """The prediction of a mistake that counts ``tokens`` tokens in a step."""
    return counting(context, name, np.full(context.step.size, tokens), words=words)


def counted_mask(context: StepContext) -> Mask:
    """The mask that denominators count: [tokens]."""
    original = context.step.original_mask
    modified = context.conventions.denominator_mask is DenominatorMask.MODIFIED
    return context.step.mask if modified or original is None else original


def other_mask(context: StepContext) -> Iterator[Prediction]:
    """Counts the tokens of the mask that, by its conventions, the framework does not use."""
    declared = context.conventions
    for mask in DenominatorMask:
        if mask is not declared.denominator_mask and context.step.original_mask is not None:
            other = replace(declared, denominator_mask=mask)
            weights = token_weights(context.step, context.aggregation, other)
            yield Prediction(name=f"{mask}_mask_counted", weights=weights)


def rejection_left_out(context: StepContext) -> Iterator[Prediction]:
    """Trains on rejected tokens, and counts them or not."""
    if (step := context.step).original_mask is None:
        return
    before, of_units = context.before_rejection(), context.tokens_if(step.active_tokens)
    yield Prediction(name="rejection_left_out", weights=before.expected)
    for tokens in (of_units, np.maximum(of_units, 1)):
        found = counting(before, "rejected_tokens_weigh", tokens)
        if found.weights[~step.mask].any():  # some rejected token has a weight
            yield found


def truncated_counted(context: StepContext) -> Iterator[Prediction]:
    """Counts before the truncation filter: both the truncated samples and their tokens."""
    truncated = truncated_samples(context.step, context.layout)
    if not truncated.any():
        return
    counts = np.where(truncated, context.step.response_lengths, context.counted)
    is_counted = np.bincount(context.unit, weights=counts) > 0
    excluded = context.conventions.empty_units is EmptyUnits.EXCLUDED
    units = float(is_counted.sum()) if excluded else None
    yield counting(context, "truncated_samples_counted", context.tokens_if(counts), units)


def other_tokens(context: StepContext) -> Iterator[Prediction]:
    """Counts wrong tokens, such as masked tokens or those of prompts."""
    step = context.step
    if context.mode is Mode.CONSTANT:
        return
    for name, words, counts in (
        ("empty_samples_counted", "", np.maximum(context.counted, 1)),
        ("masked_tokens_counted", "", step.response_lengths),
        ("prompt_tokens_counted", "", step.prompt_lengths + step.response_lengths),
        *paddings(context),
    ):
        yield counting(context, name, context.tokens_if(counts), words=words)


def empty_micro_batches(context: StepContext) -> Iterator[Prediction]:
    """Counts at least one token in each micro-batch, with or without padding micro-batches.

    A rank with fewer micro-batches than another rank, or than its layout says, gets padding
    micro-batches.
    """
    placement, layout = context.placement, context.layout
    if placement is None or context.mode is not Mode.TOKEN_MEAN:
        return
    number = of_samples(context, placement.micro_batch_number)
    held = np.bincount(number, weights=context.counted)
    most = int(placement.micro_batch.max()) + 1
    asked_for = layout.micro_batches if isinstance(layout.micro_batches, int) else most
    empty = int(np.count_nonzero(held == 0))
    padded = {empty + layout.dp * max(most, each) - len(held) for each in (most, asked_for)}
    for count in sorted({empty, *padded} - {0}):
        counted = held.sum() + count
        words = (
            f"{counted:g} tokens are counted: one more for each of {count} micro-batches without"
            " active ones"
        )
        yield counting_all(context, "empty_micro_batches_counted", counted, words)


def off_by_the_same(context: StepContext) -> Iterator[Prediction]:
    """Counts one or two tokens too many or too few per sample, such as an end-of-sequence token."""
    if context.mode is Mode.CONSTANT:
        return
    tokens = context.counted
    trained, every = ("every sample", tokens > 0), ("every sample, empty ones too,", tokens >= 0)
    for difference, (samples, are_counted) in (
        *product((1, -1, 2, -2), [trained]),
        *product((1, 2), [every]),
    ):
        counts = np.where(are_counted, np.maximum(tokens + difference, 0), 0)
        counted = np.maximum(context.tokens_if(counts), 1)
        sign = "more" if difference > 0 else "less"
        words = f"{samples} counts {abs(difference)} token {sign} than it has"
        yield counting(context, "tokens_per_sample_miscounted", counted, words=words)


def off_by_one(context: StepContext) -> Iterator[Prediction]:
    """Counts one token or unit too many or too few in the step."""
    of_tokens = context.mode is Mode.TOKEN_MEAN
    count = float(context.counted.sum()) if of_tokens else float(context.units)
    what = "token" if of_tokens else "unit"
    for difference, sign in ((-1, "less"), (1, "more")):
        counted = max(count + difference, 1.0)
        words = f"one {what} {sign} is counted than there is: {counted:g}"
        if of_tokens:
            yield counting_all(context, "count_off_by_one", counted, words)
        else:
            yield counting(context, "count_off_by_one", units=counted, words=words)


def other_units(context: StepContext) -> Iterator[Prediction]:
    """Counts other units instead of samples or prompts."""
    step = context.step
    if context.mode is Mode.TOKEN_MEAN:
        return
    units = "prompts" if context.mode is Mode.PROMPT_MEAN else "samples"
    for what, count in (
        ("samples", step.size),
        ("rollouts", len(np.unique(step.rollouts))),
        ("prompts", len(np.unique(step.groups))),
        ("tokens", max(int(context.counted.sum()), 1)),
    ):
        if count != context.units:
            yield Prediction(
                name=f"{what}_counted_as_{units}",
                words=f"{count} {what} are counted instead of {context.units} {units}",
                weights=context.weights(units=count),
                causes=[f"{what}_counted_as_units"],
            )


def filling_rows(context: StepContext) -> Iterator[Prediction]:
    """Counts rows that pad a step to a multiple of its ranks as samples."""
    if context.mode not in (Mode.SAMPLE_MEAN, Mode.CONSTANT):
        return
    layout, size = context.layout, context.step.size
    for ranks in sorted({layout.dp, layout.ranks_per_stage}):
        if filling := -size % ranks:
            words = f"{filling} rows that fill {size} samples up for {ranks} ranks are counted"
            units = context.units + filling
            yield counting(context, "filling_rows_counted", units=units, words=words)


def adjacent_prompts(context: StepContext) -> Iterator[Prediction]:
    """Counts a prompt for each run of adjacent samples of the same prompt."""
    step = context.step
    if context.mode is not Mode.PROMPT_MEAN:
        return
    run = np.cumsum(np.diff(step.groups, prepend=step.groups[0]) != 0)
    tokens, runs = np.bincount(run, weights=context.counted)[run], run[-1] + 1
    words = f"{runs} runs of adjacent samples are counted instead of {context.units} prompts"
    yield counting(context, "runs_counted_as_prompts", tokens, float(runs), words)


def other_steps(context: StepContext) -> Iterator[Prediction]:
    """Counts over the whole batch of rollouts, or takes the average over its steps."""
    steps = context.steps
    if len(steps) == 1:
        return
    units = sum(
        int(unit_of_sample(step, context.mode, context.conventions).max()) + 1 for step in steps
    )
    tokens = None
    if context.mode is Mode.TOKEN_MEAN:
        units = 1
        counted = sum(int(counted_tokens(step, context.conventions).sum()) for step in steps)
        tokens = np.full(context.step.size, float(counted))
    weights = context.weights(tokens, units)
    yield Prediction(name="counted_over_batch", weights=weights)
    yield Prediction(name="mean_of_the_batch_counted", weights=weights * len(steps))


def rounded_counts(context: StepContext) -> Iterator[Prediction]:
    """Counts tokens in a dtype that cannot hold the counts exactly."""
    if context.mode is Mode.CONSTANT:
        return
    for dtype, (bits, largest) in COARSE_DTYPES.items():
        words = f"tokens are counted in {dtype}, which has no odd numbers above {2**bits}"
        rounded = _rounded(context.unit_tokens, bits, largest)
        yield counting(context, f"counted_in_{dtype}", rounded, words=words)
    words = f"tokens are summed in float32, in which {2**24} + 1 is {2**24}"
    yield counting(context, "counted_in_float32", _added_in_float32(context), words=words)


def clamped_shares(context: StepContext) -> Iterator[Prediction]:
    """Clamps a rank's share of the step's tokens to at least 1.

    The clamp is meant for a step without active tokens, but follows the division by ranks.
    """
    dp, tokens = context.layout.dp, int(context.counted.sum())
    if context.mode is Mode.TOKEN_MEAN and 0 < tokens < dp:
        words = f"each of {dp} ranks counts one token, as {tokens}/{dp} is less"
        yield counting_all(context, "shares_of_ranks_clamped", dp, words)


def rounded_shares(context: StepContext) -> Iterator[Prediction]:
    """Rounds down each context-parallel rank's share of a micro-batch's tokens.

    A framework may multiply a loss by all tokens of sequences and divide it by the counted tokens.
    This changes the loss only if the tokens are not a multiple of the ranks.
    """
    cp, placement = context.layout.cp, context.placement
    if placement is None:
        return
    lengths = context.step.prompt_lengths + context.step.response_lengths
    micro_batch = of_samples(context, placement.micro_batch_number)
    held = np.bincount(micro_batch, weights=lengths)
    counted = float((cp * (held // cp)).sum())
    if 0 < counted < held.sum():
        yield Prediction(
            name="cp_shares_rounded_down",
            words=f"context-parallel ranks count {counted:g} of {held.sum():g} tokens of"
            f" sequences: 1/{cp} of a micro-batch's each, rounded down",
            weights=context.expected * (held.sum() / counted),
        )


def _added_in_float32(context: StepContext) -> Values:
    """For each sample, the number of its unit's tokens, added up in float32: [N]."""
    tokens = context.counted.astype(np.float32)
    units = range(int(context.unit.max()) + 1)
    totals = [np.cumsum(tokens[context.unit == unit], dtype=np.float32)[-1] for unit in units]
    return np.array(totals, np.float64)[context.unit]


def _rounded(counts: Values, bits: int, largest: float) -> Values:
    """Counts rounded to a number of significant bits; infinite if larger than ``largest``."""
    mantissas, exponents = np.frexp(counts)
    rounded: Values = np.ldexp(np.round(mantissas * 2**bits), exponents - bits)
    return np.where(rounded > largest, np.inf, rounded)


def paddings(context: StepContext) -> Iterator[tuple[str, str, Integers]]:
    """Yield a mistake, its words, and each sample's number of tokens including padding: [N].

    Samples are padded to the longest sample of the step, of their rank, of their micro-batch, or of
    all ranks' micro-batches with the same index.
    """
    together, placement = {"step": np.zeros_like(context.sample)}, context.placement
    if placement is not None:
        together["rank's samples"] = placement.dp_rank
        together["micro-batch"] = placement.micro_batch_number
        together["micro-batch of all ranks"] = placement.micro_batch
    for (what, lengths), (part, of_tokens) in product(_lengths(context), together.items()):
        words = f"padding up to the longest {what} of the {part} is counted"
        yield "padding_counted", words, widest(lengths, of_samples(context, of_tokens))


def padded_widths(context: StepContext) -> Iterator[Prediction]:
    """Divides by the width of a micro-batch's rows, instead of one divisor for all tokens.

    All ranks may cut their rows to a common width, and rows of predicted tokens are one token
    shorter. Samples in packed rows each have a width of their own, a multiple of 16.
    """
    placement = context.placement
    if placement is None:
        return
    if context.mode is Mode.TOKEN_MEAN:
        yield from _means_over_rows(context, of_samples(context, placement.micro_batch_number))
    if context.mode is not Mode.CONSTANT:
        return
    if context.layout.format == "thd":
        lengths = context.step.prompt_lengths + context.step.response_lengths
        words = "a sample's own padded length, less a token"
        yield from _divided_by(context, -(-lengths // 16) * 16 - 1, words)
    for whose, micro_batch in (
        ("", placement.micro_batch_number),
        (" of all ranks", placement.micro_batch),
    ):
        for what, lengths in _lengths(context):
            widths = widest(lengths, of_samples(context, micro_batch))
            words = f"the longest {what} of a micro-batch{whose}"
            yield from _divided_by(context, widths, words)
            if what == "sequence":
                yield from _divided_by(context, widths - 1, f"{words}, less a token")


def _means_over_rows(context: StepContext, micro_batch: Integers) -> Iterator[Prediction]:
    """Yield predictions if the ``mean()`` of each micro-batch's rows is averaged."""
    several = len(np.unique(micro_batch))
    rows = np.bincount(micro_batch)[micro_batch] * several
    named = dict(_lengths(context))
    for what, lengths in (*named.items(), ("sequence, less a token", named["sequence"] - 1)):
        divisors = np.maximum(rows * widest(lengths, micro_batch), 1).astype(np.float64)
        words = f"a micro-batch is divided by its rows times the longest {what}"
        yield counting(context, "padded_width_as_divisor", divisors, 1.0, words)
    for what, lengths in named.items():
        packed = several * np.bincount(micro_batch, weights=lengths).astype(np.float64)[micro_batch]
        words = f"each micro-batch is divided by all tokens of its {what}s"
        yield counting(context, "packed_length_as_divisor", packed, 1.0, words)


def _lengths(context: StepContext) -> Iterator[tuple[str, Integers]]:
    step = context.step
    yield "response", step.response_lengths
    yield "sequence", step.prompt_lengths + step.response_lengths


def widest(lengths: Integers, micro_batch: Integers) -> Integers:
    """The largest length of each sample's micro-batch: [N]."""
    widest = np.zeros(micro_batch.max() + 1, np.int64)
    np.maximum.at(widest, micro_batch, lengths)
    return widest[micro_batch]


def _divided_by(context: StepContext, widths: Integers, words: str) -> Iterator[Prediction]:
    """Yield predictions for sample sums divided by widths, both averaged and summed."""
    name, divisors = "padded_width_as_divisor", widths.astype(np.float64)
    words = f"the divisor is {words}"
    yield counting(context, name, divisors, words=words)
    summed = counting(context, name, divisors, 1.0, f"{words}, and samples are summed")
    yield replace(summed, together=("samples_not_averaged",))
