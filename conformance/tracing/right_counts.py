"""The reference's counts of a step, with which the counts in a traced divisor are compared."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformance.tracing.graph import is_close
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext

NO_FACTOR = "no factor"
"""The name of a count of 1, which stands for no multiplication or division."""

Named = dict[str, float]
"""Counts of the reference, by name."""


@lru_cache(maxsize=4096)
def counts_of_token(context: StepContext, place: int) -> Named:
    """The reference's counts for a token's weight, by name."""
    return {NO_FACTOR: 1.0, **{words: value for value, words in RightCounts(context, place).named}}


@lru_cache(maxsize=4096)
def counts_with_parts(context: StepContext, place: int) -> Named:
    """`counts_of_token`, with the numbers of active tokens in the parts that hold the token."""
    parts = RightCounts(context, place).parts
    of_parts = {f"active tokens of {words}": count for count, words in parts if count}
    return {**counts_of_token(context, place), **of_parts}


def counts_of_step(context: StepContext) -> Named:
    """The counts that are the same for all tokens of a step."""
    _, firsts = np.unique(context.sample[context.expected != 0], return_index=True)
    places = np.flatnonzero(context.expected)[firsts]
    several = [counts_of_token(context, int(place)) for place in places]
    return {
        name: count
        for name, count in (several[0] if several else {}).items()
        if all(each.get(name) == count for each in several)
    }


class RightCounts:
    """The right counts in the divisor of one token's weight, and the sizes of the layout."""

    def __init__(self, context: StepContext, place: int) -> None:
        self._ingredients = [*_ingredients(context, place)]
        self.parts = [*_parts(context, place)]
        self._sizes = _sizes(context, place)

    @property
    def named(self) -> list[tuple[float, str]]:
        """The counts in the right divisor, alone and combined with sizes, each with its name."""
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

    def ingredient(self, number: float) -> str | None:
        """The name of the count in the right divisor that equals a number; None if none does."""
        return _words(number, self._ingredients)

    def is_size(self, number: float) -> bool:
        """Whether a number or its reciprocal is 1 or a number of ranks or micro-batches."""
        ways = (number, 1 / number if number else 0.0)
        sizes = [1.0, *(size for size, _ in self._sizes)]
        return any(is_close(one, size) for one in ways for size in sizes)


def is_product(name: str) -> bool:
    """Whether a name is that of a product or quotient of counts."""
    return " / " in name or " \N{MIDDLE DOT} " in name


def _products(
    counts: Sequence[tuple[float, str]], sizes: Sequence[tuple[float, str]]
) -> list[tuple[float, str]]:
    """The products and quotients of counts and sizes, each with its name."""
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
"""Names of the whole divisor of a token's loss: `IN_ALL` among the divisor's own counts, `WHOLE`
among other numbers."""

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


def _parts(context: StepContext, place: int) -> Iterator[tuple[float, str]]:
    """Yield the numbers of tokens in the sample, rank and micro-batch that hold the token."""
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
        yield float(context.step.mask[is_there].sum()), words


def _sizes(context: StepContext, place: int) -> list[tuple[float, str]]:
    """The sizes of the layout above 1; a size with several names is repeated for each."""
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
