"""Known mistakes of numbers that are logged, which no gradient has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Option
from conformance.explain.catalogue.mistake import Kind, Prediction, known
from conformance.explain.catalogue.parts import unfilled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.expected.step_context import StepContext

known(
    {
        "shares_of_all_ranks_averaged": (
            "micro-batch shares are averaged over all ranks instead of summed"
        ),
        "windows_counted_by_samples": (
            "a logged sum is divided by a number of optimizer steps that is derived from the"
            " number of samples"
        ),
    },
    rank=6,
    kind=Kind.LOGGED,
    at_size={
        "shares_of_all_ranks_averaged": (
            "too small by the number of ranks times that of their micro-batches"
        ),
        "windows_counted_by_samples": (
            "as many times too small as an average micro-batch has samples"
        ),
    },
)


def averaged_shares(context: StepContext) -> Iterator[Prediction]:
    """Averages the shares of the micro-batches of all ranks, those of padding too."""
    if context.placement is None:
        return
    rows = context.filled_rows or unfilled(context, context.placement)
    whole = rows.most_micro_batches + (Option.PARTIAL_WINDOW in context.layout.options)
    windows = context.step.size // context.layout.dp // whole
    if not isinstance(context.layout.micro_batches, int) and windows > 1:
        yield Prediction(
            name="windows_counted_by_samples",
            words=f"the sum is divided by {windows}, as many optimizer steps as"
            f" {context.step.size} samples would make in micro-batches of one",
            weights=context.expected / windows,
        )
    averaged = context.layout.dp * context.layout.cp * rows.most_micro_batches
    if averaged > 1:
        yield Prediction(name="shares_of_all_ranks_averaged", weights=context.expected / averaged)
