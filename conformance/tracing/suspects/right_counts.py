"""The right counts of a step, with which the counts in a divisor are compared."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from conformance.tracing.graph import is_close
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext


class RightCounts:
    """What the divisor of one token's weight is rightly made of, and what ranks and cuts add."""

    def __init__(self, context: StepContext, place: int) -> None:
        self._ingredients = [*_ingredients(context, place)]
        self._parts = [*_parts(context, place, context.step.mask)]
        self._masks = [*self._parts, *_parts(context, place, context.step.mask_before_rejection)]
        self._factors = [*_factors(context, place)]
        self._sizes = _sizes(context, place)
        in_unit = context.unit == context.unit[context.sample[place]]
        self._samples = context.counted[in_unit] if in_unit.sum() > 1 else ()

    @property
    def named(self) -> list[tuple[float, str]]:
        """What the right divisor is made of, with ranks and micro-batches, each with its name."""
        counts = [
            (count, WHOLE if words == IN_ALL else words) for count, words in self._ingredients
        ]
        sizes = self._sizes
        return [
            *counts,
            *_products(counts, sizes),
            *sizes,
            *((1 / size, f"1 / {words}") for size, words in sizes),
        ]

    @property
    def tokens(self) -> float:
        """The tokens of the token's unit; L in `constant`."""
        return self._ingredients[0][0]

    def ingredient(self, number: float) -> str | None:
        """What of the right divisor a number counts; None if nothing."""
        return _words(number, self._ingredients)

    def needed(self, number: float) -> str | None:
        """The same, which may be multiplied or divided by a number of ranks or micro-batches."""
        return _words(number, [*self._ingredients, *_products(self._ingredients, self._factors)])

    def part(self, number: float) -> str | None:
        """The part of the step that has as many active tokens, such as a micro-batch."""
        return _words(number, self._parts)

    def is_sample_of_unit(self, number: float) -> bool:
        """Whether one of the samples of a unit that has several counts a number."""
        return any(is_close(one, number) for one in self._samples)

    def is_mask(self, number: float) -> bool:
        """Whether the mask of a part of the step, perhaps before rejection, counts a number."""
        return _words(number, self._masks) is not None

    def ranks(self, number: float) -> str | None:
        """The ranks of a direction of the layout that a number, or its reciprocal, is."""
        found = self.factor(number)
        return found if found is not None and found.endswith("ranks") else None

    def is_size(self, number: float) -> bool:
        """Whether a number equals the number of ranks or of micro-batches, which may be 1."""
        return is_close(number, 1) or self.factor(number) is not None

    def factor(self, number: float) -> str | None:
        """The number of ranks or micro-batches that a factor, or its reciprocal, is."""
        inverse = 1 / number if number else 0.0
        return _words(number, self._factors) or _words(inverse, self._factors)


def _products(
    counts: Sequence[tuple[float, str]], sizes: Sequence[tuple[float, str]]
) -> list[tuple[float, str]]:
    """Counts that are multiplied or divided by sizes."""
    return [
        (count * size, f"{words} {sign} {factor}")
        for (count, words), (factor_size, factor) in product(counts, sizes)
        for size, sign in ((factor_size, "·"), (1 / factor_size, "/"))
        if count != 1
    ]


def _words(number: float, counted: Iterable[tuple[float, str]]) -> str | None:
    return next((words for value, words in counted if is_close(value, number)), None)


def _ingredients(context: StepContext, place: int) -> Iterator[tuple[float, str]]:
    sample, mode = context.sample[place], context.mode
    if mode is Mode.CONSTANT:
        assert context.aggregation.divisor is not None
        yield context.aggregation.divisor, "as the divisor L"
    else:
        unit = context.unit
        whose = WHOSE[mode]
        counted = float(context.counted[unit == unit[sample]].sum())
        yield counted, f"active tokens of {whose}"
    if mode is not Mode.TOKEN_MEAN:
        yield float(context.units), UNITS[mode]
    if weight := float(context.expected[place]):
        yield 1 / weight, IN_ALL


IN_ALL = "in all"
WHOLE = "the whole divisor"
"""What a token's loss is divided by in all, alone and among other counts."""

WHOSE = {
    Mode.TOKEN_MEAN: "the step",
    Mode.SAMPLE_MEAN: "its sample or rollout",
    Mode.PROMPT_MEAN: "its prompt",
}
UNITS = {
    Mode.SAMPLE_MEAN: "samples or rollouts",
    Mode.PROMPT_MEAN: "prompts",
    Mode.CONSTANT: "samples or rollouts",
}


def _parts(
    context: StepContext, place: int, mask: NDArray[np.bool_]
) -> Iterator[tuple[float, str]]:
    """Yield the tokens of the sample, rank and micro-batch that hold the token."""
    held = context.placement
    yield float(context.counted[context.sample[place]]), "its sample"
    if held is None:
        return
    parts: dict[str, NDArray[np.int64]] = {
        "its micro-batch": held.micro_batch_number,
        "its data-parallel rank": held.dp_rank,
    }
    slices = held.dp_rank * context.layout.cp + held.cp_rank
    parts["its rank"] = slices
    parts["its rank's slice of the micro-batch"] = (
        held.micro_batch_number * context.layout.cp + held.cp_rank
    )
    parts["its rank's slice of the sample"] = context.sample * context.layout.cp + held.cp_rank
    for words, part in parts.items():
        is_there = part == part[place]
        yield float(mask[is_there].sum()), words


def _factors(context: StepContext, place: int) -> Iterator[tuple[float, str]]:
    """Yield each size with one name."""
    yield from dict(reversed(_sizes(context, place))).items()


def _sizes(context: StepContext, place: int) -> list[tuple[float, str]]:
    """The sizes of the layout above 1, those of several names once for each."""
    layout, held = context.layout, context.placement
    sizes = [
        (layout.dp * layout.cp, "ranks"),
        (layout.cp, "context-parallel ranks"),
        (layout.dp, "data-parallel ranks"),
    ]
    if held is not None:
        micro_batches, own = context.most_micro_batches, int(held.micro_batches[place])
        sizes += [
            (micro_batches, "micro-batches"),
            (micro_batches * layout.dp, "micro-batches of all"),
            (own, "micro-batches of its rank"),
            (own * layout.dp, "micro-batches of its rank on all"),
        ]
    return [(float(size), words) for size, words in sizes if size > 1]
