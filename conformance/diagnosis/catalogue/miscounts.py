"""Mistakes in what is counted: other tokens, other units, another step, another dtype."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.diagnosis.catalogue.mistake import Mistake
from conformance.diagnosis.catalogue.widths import of_samples, paddings
from reference.aggregation import DenominatorMask, Mode
from reference.weights import counted_tokens, token_weights, unit_of_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext


COARSE_DTYPES = {"bfloat16": (8, 3.4e38), "float16": (11, 65504.0)}
"""Number of significant bits and largest finite number of each dtype."""


def counted_mask(context: StepContext) -> NDArray[np.bool_]:
    """The mask that denominators count: [tokens]."""
    original = context.step.original_mask
    modified = context.conventions.denominator_mask is DenominatorMask.MODIFIED
    return context.step.mask if modified or original is None else original


def other_mask(context: StepContext) -> Iterator[Mistake]:
    """Counts the tokens of the mask that the framework documents it does not use."""
    declared = context.conventions
    for mask in DenominatorMask:
        if mask is not declared.denominator_mask and context.step.original_mask is not None:
            other = replace(declared, denominator_mask=mask)
            yield Mistake(
                name=f"{mask}_mask_counted",
                words=f"denominators count the tokens of the {mask} mask",
                weights=token_weights(context.step, context.aggregation, other),
            )


def rejection_left_out(context: StepContext) -> Iterator[Mistake]:
    """Trains on the tokens that were rejected, and counts them."""
    step = context.step
    if step.original_mask is None:
        return
    before = replace(step, mask=step.original_mask, original_mask=None)
    yield Mistake(
        name="rejection_left_out",
        words="rejected tokens are trained on and counted",
        weights=token_weights(before, context.aggregation, context.conventions),
    )


def other_tokens(context: StepContext) -> Iterator[Mistake]:
    """Counts other tokens than the active ones."""
    step = context.step
    if context.mode is Mode.CONSTANT:
        return
    for name, words, counts in (
        (
            "empty_samples_counted",
            "a sample without active tokens is counted as one token",
            np.maximum(context.counted, 1),
        ),
        ("masked_tokens_counted", "masked tokens are counted", step.response_lengths),
        (
            "prompt_tokens_counted",
            "prompts are counted with their responses",
            step.prompt_lengths + step.response_lengths,
        ),
        *paddings(context),
    ):
        weights = context.weights(context.tokens_if(counts))
        yield Mistake(name=name, words=words, weights=weights)


def off_by_the_same(context: StepContext) -> Iterator[Mistake]:
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
        yield Mistake(
            name="tokens_per_sample_miscounted",
            words=f"{samples} counts {abs(difference)} token {sign} than it has",
            weights=context.weights(counted),
        )


def off_by_one(context: StepContext) -> Iterator[Mistake]:
    """Counts one token of the step, or one unit, too many or too few."""
    of_tokens = context.mode is Mode.TOKEN_MEAN
    count = float(context.counted.sum()) if of_tokens else float(context.units)
    for difference, sign in ((-1, "less"), (1, "more")):
        counted = max(count + difference, 1.0)
        if of_tokens:
            weights = context.weights(np.full(context.step.size, counted))
        else:
            weights = context.weights(units=counted)
        what = "token" if of_tokens else "unit"
        yield Mistake(
            name="count_off_by_one",
            words=f"one {what} {sign} is counted than there is: {counted:g}",
            weights=weights,
        )


def other_units(context: StepContext) -> Iterator[Mistake]:
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
            yield Mistake(
                name=f"{what}_counted_as_{units}",
                words=f"{count} {what} are counted in the place of {context.units} {units}",
                weights=context.weights(units=count),
                causes=[f"{what}_counted_as_units"],
            )


def filling_rows(context: StepContext) -> Iterator[Mistake]:
    """Counts the rows that fill a step up to a multiple of its ranks as samples."""
    if context.mode not in (Mode.SAMPLE_MEAN, Mode.CONSTANT):
        return
    layout, size = context.layout, context.step.size
    for ranks in sorted({layout.dp, layout.ranks_per_stage}):
        filling = -size % ranks
        if filling:
            yield Mistake(
                name="filling_rows_counted",
                words=f"{filling} rows that fill {size} samples up for {ranks} ranks are counted",
                weights=context.weights(units=context.units + filling),
            )


def other_prompts(context: StepContext) -> Iterator[Mistake]:
    """Recognises or counts prompts by a rule that not every step follows."""
    step = context.step
    if context.mode is not Mode.PROMPT_MEAN:
        return
    starts = np.diff(step.groups, prepend=step.groups[0]) != 0
    run = np.cumsum(starts)
    tokens = np.bincount(run, weights=context.counted)[run]
    yield Mistake(
        name="runs_counted_as_prompts",
        words=f"{run[-1] + 1} runs of adjacent samples are taken for {context.units} prompts",
        weights=context.weights(tokens, float(run[-1] + 1)),
    )
    group_size = np.bincount(context.unit).max()
    yield Mistake(
        name="prompts_by_group_size",
        words=f"prompts are taken to be {step.size} samples / {group_size} of a prompt",
        weights=context.weights(units=step.size / float(group_size)),
    )


def other_steps(context: StepContext) -> Iterator[Mistake]:
    """Counts over the whole batch of rollouts, or over the previous step."""
    for name, words, others in (
        ("counted_over_batch", "of all steps of the batch together", context.steps),
        (
            "counted_of_the_step_before",
            "of the step before",
            context.steps[: context.step_index][-1:],
        ),
    ):
        if len(context.steps) == 1 or not others:
            continue
        units = sum(
            int(unit_of_sample(step, context.mode, context.conventions).max()) + 1
            for step in others
        )
        tokens = None
        if context.mode is Mode.TOKEN_MEAN:
            units = 1
            counted = sum(int(counted_tokens(step, context.conventions).sum()) for step in others)
            tokens = np.full(context.step.size, float(counted))
        weights = context.weights(tokens, units)
        yield Mistake(name=name, words=f"what is counted is that {words}", weights=weights)
        if others is context.steps:
            yield Mistake(
                name="mean_of_the_batch_counted",
                words=f"what is counted is the mean of the batch's {len(others)} steps",
                weights=weights * len(others),
            )


def rounded_counts(context: StepContext) -> Iterator[Mistake]:
    """Counts in a dtype that cannot hold them, or divides integers."""
    if context.mode is Mode.CONSTANT:
        return
    tokens = context.unit_tokens
    for dtype, (bits, largest) in COARSE_DTYPES.items():
        yield Mistake(
            name=f"counted_in_{dtype}",
            words=f"tokens are counted in {dtype}, which has no odd numbers above {2**bits}",
            weights=context.weights(_rounded(tokens, bits, largest)),
        )
    yield Mistake(
        name="counted_in_float32",
        words=f"tokens are added up in float32, in which {2**24} + 1 is {2**24}",
        weights=context.weights(_added_in_float32(context)),
    )
    members = np.bincount(context.unit)[context.unit]
    for what, count in (("samples", members), ("dp", np.full_like(members, context.layout.dp))):
        cut = count * (tokens // count)
        words = f"tokens per {what} are cut to a whole number before they are multiplied again"
        yield Mistake(name="integer_division", words=words, weights=context.weights(cut))
        if not cut.all():
            words = f"{words}, and are 1 at least"
            weights = context.weights(np.maximum(cut, 1))
            yield Mistake(name="integer_division", words=words, weights=weights)


def clamped_shares(context: StepContext) -> Iterator[Mistake]:
    """Sets a rank's share of the step's tokens to 1 where it is smaller.

    The clamp is meant for a step without active tokens, and comes after the division by ranks.
    """
    dp, tokens = context.layout.dp, int(context.counted.sum())
    if context.mode is Mode.TOKEN_MEAN and 0 < tokens < dp:
        yield Mistake(
            name="shares_of_ranks_clamped",
            words=f"each of {dp} ranks counts one token, as {tokens}/{dp} is less",
            weights=context.weights(np.full_like(context.unit_tokens, dp)),
        )


def rounded_shares(context: StepContext) -> Iterator[Mistake]:
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
        yield Mistake(
            name="cp_shares_rounded_down",
            words=f"context-parallel ranks count {counted:g} of {held.sum():g} tokens of"
            f" sequences: 1/{cp} of a micro-batch's each, cut to a whole number",
            weights=context.expected * (held.sum() / counted),
        )


def _added_in_float32(context: StepContext) -> NDArray[np.float64]:
    """Tokens of the unit of each sample, added up in float32: [N]."""
    tokens = context.counted.astype(np.float32)
    totals = [
        float(np.cumsum(tokens[context.unit == unit], dtype=np.float32)[-1])
        for unit in range(int(context.unit.max()) + 1)
    ]
    return np.array(totals)[context.unit]


def _rounded(counts: NDArray[np.float64], bits: int, largest: float) -> NDArray[np.float64]:
    """Counts rounded to a number of significant bits; infinite above the largest number."""
    mantissas, exponents = np.frexp(counts)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissas * 2**bits), exponents - bits)
    return np.where(rounded > largest, np.inf, rounded)
