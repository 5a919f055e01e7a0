"""Mistakes in what is counted: other tokens, units or steps, another dtype."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.expected.step_context import of_samples, truncated_samples
from conformance.explain.catalogue.mistake import Prediction, known
from conformance.explain.catalogue.paddings import paddings
from reference.aggregation import DenominatorMask, EmptyUnits, Mode
from reference.weights import counted_tokens, token_weights, unit_of_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext


known(
    {"empty_samples_counted": "a sample without active tokens is counted as one token"},
    rank=3,
)
known(
    {
        "empty_micro_batches_counted": (
            "a micro-batch without active tokens is counted as one token"
        )
    },
    rank=3,
)
known(
    {
        "rejection_left_out": "rejected tokens are trained on and counted",
        "rejected_tokens_weigh": (
            "rejected tokens are trained on, but denominators do not count them"
        ),
    },
    rank=3,
)
known(
    {
        "original_mask_counted": "denominators count the mask before rejection sampling",
        "modified_mask_counted": "denominators count the mask after rejection sampling",
    },
    rank=3,
    at_size={
        "original_mask_counted": "too small by about the share of tokens that are rejected",
    },
)
known(
    {
        "truncated_samples_counted": (
            "denominators count samples that the truncation filter leaves out"
        )
    },
    rank=3,
    at_size={
        "truncated_samples_counted": "too small by the share of tokens or samples that are cut off",
    },
)
known(
    {
        "filling_rows_counted": (
            "rows that pad the batch to a multiple of the ranks are counted as samples"
        )
    },
    rank=5,
)
known(
    {
        "counted_over_batch": "the whole batch is counted instead of the step",
        "mean_of_the_batch_counted": "every step uses the average count over the steps of a batch",
        "masked_tokens_counted": "masked tokens are counted",
        "prompt_tokens_counted": "tokens of prompts are counted",
        "runs_counted_as_prompts": "runs of adjacent samples are counted as prompts",
        "tokens_per_sample_miscounted": ("every sample's token count is off by one or two"),
    },
    rank=10,
    at_size={
        "counted_over_batch": "as many times too small as a batch has optimizer steps",
        "mean_of_the_batch_counted": (
            "a step with twice the average number of tokens counts twice"
        ),
    },
)
known(
    {
        **{
            f"{what}_counted_as_units": (
                f"the number of {what} is the divisor, which the mode does not average over"
            )
            for what in ("samples", "rollouts", "prompts", "tokens")
        },
        "counted_in_bfloat16": "tokens are counted in bfloat16",
        "counted_in_float16": "tokens are counted in float16",
        "counted_in_float32": "tokens are summed in float32",
        "integer_division": "tokens per sample or rank are rounded down",
        "cp_shares_rounded_down": (
            "the share of a micro-batch's tokens that each context-parallel rank counts is rounded"
            " down"
        ),
        "count_off_by_one": "a count of tokens, samples or prompts is off by one",
    },
    rank=12,
    at_size={
        "cp_shares_rounded_down": (
            "too large by at most (cp - 1) / n for micro-batches of n tokens: 0.04 % at 16k tokens"
            " and cp 8"
        ),
    },
)
known(
    {
        "shares_of_ranks_clamped": (
            "a data-parallel rank's share of the step's tokens is clamped to at least 1"
        )
    },
    rank=12,
    at_size={
        "shares_of_ranks_clamped": (
            "only steps with fewer active tokens than data-parallel ranks are affected"
        ),
    },
    only=("where there are fewer active tokens than data-parallel ranks",),
)
COARSE_DTYPES = {"bfloat16": (8, 3.4e38), "float16": (11, 65504.0)}
"""Number of significant bits and largest finite number of each dtype."""


def counted_mask(context: StepContext) -> NDArray[np.bool_]:
    """The mask that denominators count: [tokens]."""
    original = context.step.original_mask
    modified = context.conventions.denominator_mask is DenominatorMask.MODIFIED
    return context.step.mask if modified or original is None else original


def other_mask(context: StepContext) -> Iterator[Prediction]:
    """Counts the tokens of the mask that the framework documents it does not use."""
    declared = context.conventions
    for mask in DenominatorMask:
        if mask is not declared.denominator_mask and context.step.original_mask is not None:
            other = replace(declared, denominator_mask=mask)
            yield Prediction(
                name=f"{mask}_mask_counted",
                weights=token_weights(context.step, context.aggregation, other),
            )


def rejection_left_out(context: StepContext) -> Iterator[Prediction]:
    """Trains on the tokens that were rejected, and counts them or not."""
    if (step := context.step).original_mask is None:
        return
    before, of_units = context.before_rejection(), context.tokens_if(step.active_tokens)
    yield Prediction(name="rejection_left_out", weights=before.expected)
    for counted in (of_units, np.maximum(of_units, 1)):
        weights = before.weights(counted)
        if weights[~step.mask].any():  # not if all rejected tokens are of empty samples
            yield Prediction(name="rejected_tokens_weigh", weights=weights)


def truncated_counted(context: StepContext) -> Iterator[Prediction]:
    """Counts before the truncation filter: the tokens of samples that were cut off, and these."""
    truncated = truncated_samples(context.step, context.layout)
    if not truncated.any():
        return
    counts = np.where(truncated, context.step.response_lengths, context.counted)
    is_counted = np.bincount(context.unit, weights=counts) > 0
    excluded = context.conventions.empty_units is EmptyUnits.EXCLUDED
    yield Prediction(
        name="truncated_samples_counted",
        weights=context.weights(
            context.tokens_if(counts), float(is_counted.sum()) if excluded else None
        ),
    )


def other_tokens(context: StepContext) -> Iterator[Prediction]:
    """Counts other tokens than the active ones."""
    step = context.step
    if context.mode is Mode.CONSTANT:
        return
    for name, words, counts in (
        ("empty_samples_counted", "", np.maximum(context.counted, 1)),
        ("masked_tokens_counted", "", step.response_lengths),
        ("prompt_tokens_counted", "", step.prompt_lengths + step.response_lengths),
        *paddings(context),
    ):
        weights = context.weights(context.tokens_if(counts))
        yield Prediction(name=name, words=words, weights=weights)


def empty_micro_batches(context: StepContext) -> Iterator[Prediction]:
    """Counts at least one token in each micro-batch, also in those of padding alone or not.

    A rank that has fewer micro-batches than another, or than its layout says, is padded with these.
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
        yield Prediction(
            name="empty_micro_batches_counted",
            words=f"{counted:g} tokens are counted: one more for each of {count} micro-batches"
            " without active ones",
            weights=context.weights(np.full(context.step.size, counted)),
        )


def off_by_the_same(context: StepContext) -> Iterator[Prediction]:
    """Counts one or two tokens too many or too few in each sample, such as an end of sequence."""
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
        yield Prediction(
            name="tokens_per_sample_miscounted",
            words=f"{samples} counts {abs(difference)} token {sign} than it has",
            weights=context.weights(counted),
        )


def off_by_one(context: StepContext) -> Iterator[Prediction]:
    """Counts one token of the step, or one unit, too many or too few."""
    of_tokens = context.mode is Mode.TOKEN_MEAN
    count = float(context.counted.sum()) if of_tokens else float(context.units)
    for difference, sign in ((-1, "less"), (1, "more")):
        counted = max(count + difference, 1.0)
        tokens, units = (
            (np.full(context.step.size, counted), None) if of_tokens else (None, counted)
        )
        what = "token" if of_tokens else "unit"
        yield Prediction(
            name="count_off_by_one",
            words=f"one {what} {sign} is counted than there is: {counted:g}",
            weights=context.weights(tokens, units),
        )


def other_units(context: StepContext) -> Iterator[Prediction]:
    """Counts something else instead of samples or prompts."""
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
    """Counts the rows that fill a step up to a multiple of its ranks as samples."""
    if context.mode not in (Mode.SAMPLE_MEAN, Mode.CONSTANT):
        return
    layout, size = context.layout, context.step.size
    for ranks in sorted({layout.dp, layout.ranks_per_stage}):
        if filling := -size % ranks:
            yield Prediction(
                name="filling_rows_counted",
                words=f"{filling} rows that fill {size} samples up for {ranks} ranks are counted",
                weights=context.weights(units=context.units + filling),
            )


def adjacent_prompts(context: StepContext) -> Iterator[Prediction]:
    """Counts a prompt for each run of adjacent samples that have the same."""
    step = context.step
    if context.mode is not Mode.PROMPT_MEAN:
        return
    run = np.cumsum(np.diff(step.groups, prepend=step.groups[0]) != 0)
    tokens = np.bincount(run, weights=context.counted)[run]
    yield Prediction(
        name="runs_counted_as_prompts",
        words=(
            f"{run[-1] + 1} runs of adjacent samples are counted instead of {context.units} prompts"
        ),
        weights=context.weights(tokens, float(run[-1] + 1)),
    )


def other_steps(context: StepContext) -> Iterator[Prediction]:
    """Counts over the whole batch of rollouts, or a step's share of that count."""
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
    """Counts in a dtype that cannot hold them, or divides integers."""
    if context.mode is Mode.CONSTANT:
        return
    tokens = context.unit_tokens
    for dtype, (bits, largest) in COARSE_DTYPES.items():
        yield Prediction(
            name=f"counted_in_{dtype}",
            words=f"tokens are counted in {dtype}, which has no odd numbers above {2**bits}",
            weights=context.weights(_rounded(tokens, bits, largest)),
        )
    yield Prediction(
        name="counted_in_float32",
        words=f"tokens are summed in float32, in which {2**24} + 1 is {2**24}",
        weights=context.weights(_added_in_float32(context)),
    )
    members = np.bincount(context.unit)[context.unit]
    for count in (members, np.full_like(members, context.layout.dp)):
        cut = count * (tokens // count)
        for tokens_left in (cut, np.maximum(cut, 1))[: 1 + (not cut.all())]:
            yield Prediction(name="integer_division", weights=context.weights(tokens_left))


def clamped_shares(context: StepContext) -> Iterator[Prediction]:
    """Sets a rank's share of the step's tokens to 1 where it is smaller.

    The clamp is meant for a step without active tokens, and comes after the division by ranks.
    """
    dp, tokens = context.layout.dp, int(context.counted.sum())
    if context.mode is Mode.TOKEN_MEAN and 0 < tokens < dp:
        yield Prediction(
            name="shares_of_ranks_clamped",
            words=f"each of {dp} ranks counts one token, as {tokens}/{dp} is less",
            weights=context.weights(np.full_like(context.unit_tokens, dp)),
        )


def rounded_shares(context: StepContext) -> Iterator[Prediction]:
    """Counts the tokens of micro-batches in shares of context-parallel ranks, which are cut.

    A loss that is multiplied by all tokens of sequences and divided by the counted ones is left as
    it was, unless tokens are no multiple of the ranks.
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


def _added_in_float32(context: StepContext) -> NDArray[np.float64]:
    """Tokens of the unit of each sample, added up in float32: [N]."""
    tokens = context.counted.astype(np.float32)
    units = range(int(context.unit.max()) + 1)
    totals = [np.cumsum(tokens[context.unit == unit], dtype=np.float32)[-1] for unit in units]
    return np.array(totals, np.float64)[context.unit]


def _rounded(counts: NDArray[np.float64], bits: int, largest: float) -> NDArray[np.float64]:
    """Counts rounded to a number of significant bits; infinite above the largest number."""
    mantissas, exponents = np.frexp(counts)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissas * 2**bits), exponents - bits)
    return np.where(rounded > largest, np.inf, rounded)
