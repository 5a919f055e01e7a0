"""Mistakes of rows that are padded to one width: it is counted, or divided by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.diagnosis.catalogue.mistake import Mistake
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext

    Lengths = NDArray[np.int64]


def paddings(context: StepContext) -> Iterator[tuple[str, str, Lengths]]:
    """Yield each sample's tokens with padding to the longest of the step or micro-batch."""
    for what, lengths in _lengths(context):
        words = f"padding up to the longest {what} of the"
        whole = np.full(context.step.size, lengths.max())
        yield "padding_counted", f"{words} step is counted", whole
        if context.placement is not None:
            widths = _widest(lengths, of_samples(context, context.placement.micro_batch_number))
            yield "padding_counted", f"{words} micro-batch is counted", widths


def padded_widths(context: StepContext) -> Iterator[Mistake]:
    """Divides by the width of a micro-batch's rows, where users would have one divisor for all.

    All ranks may cut their rows to one width, and rows of tokens that are predicted lack the first.
    """
    placement = context.placement
    if context.mode is not Mode.CONSTANT or placement is None:
        return
    for whose, micro_batch in (
        ("", placement.micro_batch_number),
        (" of all ranks", placement.micro_batch),
    ):
        for what, lengths in _lengths(context):
            widths = _widest(lengths, of_samples(context, micro_batch))
            yield from _divided_by(context, widths, f"the longest {what} of a micro-batch{whose}")
            if what == "sequence":
                words = f"the longest sequence of a micro-batch{whose}, less a token"
                yield from _divided_by(context, widths - 1, words)


def of_samples(context: StepContext, of_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """A per-token value that is constant within samples, by sample: [N]."""
    return of_tokens[context.step.offsets[:-1]]


def _lengths(context: StepContext) -> Iterator[tuple[str, Lengths]]:
    step = context.step
    yield "response", step.response_lengths
    yield "sequence", step.prompt_lengths + step.response_lengths


def _widest(lengths: Lengths, micro_batch: NDArray[np.int64]) -> Lengths:
    """The largest length of each sample's micro-batch: [N]."""
    widest = np.zeros(micro_batch.max() + 1, np.int64)
    np.maximum.at(widest, micro_batch, lengths)
    return widest[micro_batch]


def _divided_by(context: StepContext, widths: Lengths, words: str) -> Iterator[Mistake]:
    """Yield the mean over samples, and their sum, of what is divided by widths."""
    divisors = widths.astype(np.float64)
    for units, together in ((context.units, ()), (1, ("samples_not_averaged",))):
        yield Mistake(
            name="padded_width_as_divisor",
            words=f"the divisor is {words}" + ", and samples are added up" * bool(together),
            weights=context.weights(divisors, float(units)),
            together=together,
        )
