"""Known mistakes of numbers that are logged, and of a coefficient that follows one of them.

A wrong coefficient is given as its ratio to the right one, clamped as by the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Option
from conformance.explain.catalogue.mistake import Kind, Prediction, known
from conformance.explain.catalogue.parts import unfilled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from reference.controllers import AdaptiveCoefficient

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
known(
    {
        "coefficient_fixed": "the coefficient does not follow its target",
        "coefficient_adapted_the_wrong_way": ("the coefficient is adapted in the wrong direction"),
        "coefficient_adapted_twice": "the coefficient is adapted twice after one step",
    },
    rank=14,
    kind=Kind.LOGGED,
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


def wrong_coefficients(
    adaptive: AdaptiveCoefficient, term: LossTerm
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and factors, [tokens], whose sum is the coefficient with each mistake."""
    if not term.expected:
        return
    right = adaptive.after(term.expected / adaptive.coefficient * adaptive.target)
    change = right / adaptive.coefficient
    for name, wrong in (
        ("coefficient_fixed", adaptive.coefficient),
        ("coefficient_adapted_the_wrong_way", adaptive.coefficient * (2 - change)),
        ("coefficient_adapted_twice", right * change),
    ):
        yield name, term.factors * (wrong / term.expected)
