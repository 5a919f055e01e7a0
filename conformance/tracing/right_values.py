"""The reference's counts of the parts of a step, by name and in order.

A line that computes a number for each micro-batch, sample or rank should compute these counts.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, pairwise, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.tracing.graph import is_close
from conformance.tracing.right_counts import counts_of_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from conformance.expected.step_context import StepContext

    Entries = tuple[tuple[tuple[float, ...], ...], ...]
    """The entries of a line's value: for each rank, for each call, the entries."""

    OfRanks = Sequence[Sequence[float]]
    """For each rank, the values of the parts that it holds, in order."""

    Masks = Sequence[Sequence[NDArray[np.bool_]]]
    """For each rank, the masks of the tokens in the parts that it holds, in order."""

OF_MICRO_BATCH = "of a micro-batch on its rank"
OF_RANK = "of a rank"
PARTS = (
    f"active tokens {OF_MICRO_BATCH}",
    "active tokens of a sample in a micro-batch on its rank",
    "active tokens of the micro-batches of all ranks that come in turn",
    f"active tokens {OF_RANK}",
    f"samples with active tokens {OF_MICRO_BATCH}",
    f"samples with active tokens {OF_RANK}",
)
"""Names of the counts of a step's parts; these counts are added up to a count of the step."""


def ordered_as(held: Entries, values: Mapping[str, OfRanks]) -> dict[str, Entries]:
    """The named values, cut like the values that a line has; left out if their number does not fit.

    A line may compute all values at each call, or one after the other, perhaps repeatedly.
    """
    return {
        name: tuple(_cut(of_rank, one) for of_rank, one in zip(held, of_ranks, strict=True))
        for name, of_ranks in (values.items() if any(held) else ())
        if all(_fits(of_rank, one) for of_rank, one in zip(held, of_ranks, strict=True))
    }


class LeftOut(NamedTuple):
    """The number of parts that a line leaves out, and the sums of the counted and of all parts."""

    parts: int
    counted: float
    right: float

    @property
    def words(self) -> str:
        """The reason, in words, to blame the line that leaves out the parts."""
        return f"as {self.parts} part{' is' if self.parts == 1 else 's are'} not counted here"

    def makes(self, had: float, needed: float | None) -> bool:
        """Whether the wrong count sums the counted parts, and the right count sums all parts."""
        return needed is not None and is_close(self.counted, had) and is_close(self.right, needed)


def left_out(held: Entries, of_ranks: OfRanks) -> LeftOut | None:
    """The parts that a line leaves out; None if one of its values is not a right count of a part.

    If the line has all parts one after the other, it may keep only the last part of each rank.
    """
    lacking, counted_in_all, right_in_all = 0, 0.0, 0.0
    for of_rank, values in zip(held, of_ranks, strict=True):
        counted, right = Counter(chain.from_iterable(of_rank)), Counter(values)
        if not counted or counted - right:
            return None
        lacking += (right - counted).total()
        counted_in_all += sum(counted.elements())
        right_in_all += sum(values)
    if lacking:
        return LeftOut(lacking, counted_in_all, right_in_all)
    last = [sum(of_rank[-1]) for of_rank in held]
    overwritten = sum(map(len, held)) - len(held)
    return LeftOut(overwritten, sum(last), right_in_all) if overwritten else None


def _fits(held: Sequence[Sequence[float]], values: Sequence[float]) -> bool:
    sizes, size = {*map(len, held)}, sum(map(len, held))
    if not values or not held:
        return not held
    return (
        len(values) == size or sizes == {len(values)} or (sizes == {1} and size % len(values) == 0)
    )


def _cut(held: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """The values, repeated as often as needed, cut into calls of the sizes that a line has."""
    several = [*values] * (sum(map(len, held)) // len(values)) if held else []
    ends = accumulate(map(len, held), initial=0)
    return tuple(tuple(several[start:end]) for start, end in pairwise(ends))


def counts_of_parts(
    context: StepContext, observations: Sequence[Observation]
) -> dict[str, OfRanks]:
    """The reference's counts by name, for each rank's micro-batches, their samples and the rank."""
    passes = [_passes(one, 0) for one in observations]
    of_passes = [[one == number for number in _numbers(one)] for one in passes]
    of_samples = [
        [
            one & (context.sample == sample)
            for one in held
            for sample in np.unique(context.sample[one])
        ]
        for held in of_passes
    ]
    of_ranks = [[one >= 0] for one in passes]
    own = _tokens(context, of_passes)
    of_all = [[*map(sum, zip_longest(*own, fillvalue=0.0))]] * len(own)
    counts = (own, _tokens(context, of_samples), of_all, _tokens(context, of_ranks))
    found: dict[str, OfRanks] = dict(zip(PARTS, counts, strict=False))
    if (held := context.placement) is not None:
        found[PARTS[-2]] = _samples_with_tokens(context, of_passes, held.micro_batch_number)
        found[PARTS[-1]] = _samples_with_tokens(context, of_ranks, held.dp_rank)
    of_step = counts_of_step(context).items()
    return {**found, **{name: [[count]] * len(passes) for name, count in of_step}}


def _tokens(context: StepContext, of_ranks: Masks) -> OfRanks:
    """The number of active tokens of each part."""
    return [[float(context.step.mask[one].sum()) for one in held] for held in of_ranks]


def _samples_with_tokens(context: StepContext, of_ranks: Masks, part: NDArray[np.int64]) -> OfRanks:
    """The number of samples with active tokens in each part; ranks may hold slices of a sample."""
    active = {*context.sample[context.step.mask]}
    wholes = ((np.isin(part, part[one]) for one in held) for held in of_ranks)
    return [[float(len(active & {*context.sample[one]})) for one in held] for held in wholes]


def _passes(observation: Observation, step_index: int) -> NDArray[np.int32]:
    """The forward pass in which a rank held each token of a step, or -1."""
    passes = observation.forward_passes
    return passes[step_index] if passes else np.array([], np.int32)


def _numbers(passes: NDArray[np.int32]) -> list[int]:
    return [int(number) for number in np.unique(passes) if number >= 0]
