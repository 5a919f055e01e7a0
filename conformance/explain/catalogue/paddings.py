"""The padding of rows that is counted, and the width of rows that is a divisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.expected.step_context import of_samples
from conformance.explain.catalogue.mistake import Prediction, known
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext

known({"padding_counted": "padding up to the longest response or sequence is counted"}, rank=10)
known(
    {
        "padded_width_as_divisor": "the divisor is the padded width of a micro-batch",
        "packed_length_as_divisor": (
            "each micro-batch is divided by all its tokens, not the active ones alone"
        ),
    },
    rank=12,
)


def paddings(context: StepContext) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Yield each sample's tokens with padding to the longest of what is padded together.

    That is the step, what a rank has of it, or a micro-batch, of one rank or of all.
    """
    placement = context.placement
    together = (
        {}
        if placement is None
        else {
            "rank's samples": placement.dp_rank,
            "micro-batch": placement.micro_batch_number,
            "micro-batch of all ranks": placement.micro_batch,
        }
    )
    for what, lengths in _lengths(context):
        words = f"padding up to the longest {what} of the"
        whole = np.full(context.step.size, lengths.max())
        yield "padding_counted", f"{words} step is counted", whole
        for part, of_tokens in together.items():
            widths = widest(lengths, of_samples(context, of_tokens))
            yield "padding_counted", f"{words} {part} is counted", widths


def padded_widths(context: StepContext) -> Iterator[Prediction]:
    """Divides by the width of a micro-batch's rows, where all tokens would have one divisor.

    All ranks may cut their rows to one width, and rows of tokens that are predicted lack the first.
    Samples of packed rows have widths of their own, multiples of 16.
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
            yield from _divided_by(context, widths, f"the longest {what} of a micro-batch{whose}")
            if what == "sequence":
                words = f"the longest sequence of a micro-batch{whose}, less a token"
                yield from _divided_by(context, widths - 1, words)


def _means_over_rows(context: StepContext, micro_batch: NDArray[np.int64]) -> Iterator[Prediction]:
    """Yield means of what `mean()` makes of the padded rows of each micro-batch."""
    rows = np.bincount(micro_batch)[micro_batch] * len(np.unique(micro_batch))
    named = dict(_lengths(context))
    named["sequence, less a token"] = named["sequence"] - 1
    for words, lengths in named.items():
        divisors = np.maximum(rows * widest(lengths, micro_batch), 1)
        yield Prediction(
            name="padded_width_as_divisor",
            words=f"a micro-batch is divided by its rows times the longest {words}",
            weights=context.weights(divisors.astype(np.float64), 1.0),
        )
    for words, lengths in _lengths(context):
        packed = np.bincount(micro_batch, weights=lengths)[micro_batch].astype(np.float64)
        yield Prediction(
            name="packed_length_as_divisor",
            words=f"each micro-batch is divided by all tokens of its {words}s",
            weights=context.weights(packed * len(np.unique(micro_batch)), 1.0),
        )


def _lengths(context: StepContext) -> Iterator[tuple[str, NDArray[np.int64]]]:
    step = context.step
    yield "response", step.response_lengths
    yield "sequence", step.prompt_lengths + step.response_lengths


def widest(lengths: NDArray[np.int64], micro_batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest length of each sample's micro-batch: [N]."""
    widest = np.zeros(micro_batch.max() + 1, np.int64)
    np.maximum.at(widest, micro_batch, lengths)
    return widest[micro_batch]


def _divided_by(
    context: StepContext, widths: NDArray[np.int64], words: str
) -> Iterator[Prediction]:
    """Yield the mean over samples, and their sum, of what is divided by widths."""
    divisors = widths.astype(np.float64)
    for units, together in ((context.units, ()), (1, ("samples_not_averaged",))):
        yield Prediction(
            name="padded_width_as_divisor",
            words=f"the divisor is {words}" + ", and samples are summed" * bool(together),
            weights=context.weights(divisors, float(units)),
            together=together,
        )
