"""The reference's values of the parts of a batch, in their order, by name.

A line that computes one number for each sample, group, micro-batch or step had to compute these.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, pairwise, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.objective import FROM_REWARDS
from conformance.expected.advantages import BatchAdvantages
from conformance.expected.loss_terms import advantage_terms
from conformance.tracing.graph import is_close
from conformance.tracing.right_counts import counts_of_step
from reference import advantages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from adapters.contract.objective import Objective
    from conformance.expected.advantages import Estimate
    from conformance.expected.step_context import StepContext

    Entries = tuple[tuple[tuple[float, ...], ...], ...]
    """By rank, and by how often the line has asked."""

    OfRanks = Sequence[Sequence[float]]
    """The values of the parts that each rank has, in their order."""

    Masks = Sequence[Sequence[NDArray[np.bool_]]]
    """The tokens of these parts."""

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
"""The parts of a step whose tokens or samples are counted before the counts are added up."""

REWARD = "the reward of each sample"
"""The name of what advantages are made of, right wherever it stands."""


def ordered_as(held: Entries, values: Mapping[str, OfRanks]) -> dict[str, Entries]:
    """Values in the places of a line's own, where these are as many.

    A line may also make all of them each time, or one after the other over and over.
    """
    return {
        name: tuple(_cut(of_rank, one) for of_rank, one in zip(held, of_ranks, strict=True))
        for name, of_ranks in (values.items() if any(held) else ())
        if all(_fits(of_rank, one) for of_rank, one in zip(held, of_ranks, strict=True))
    }


class LeftOut(NamedTuple):
    """Parts that a line leaves out on all ranks, with the sum of those that it has, and of all."""

    parts: int
    counted: float
    right: float

    @property
    def words(self) -> str:
        """The parts as a reason to blame the line."""
        return f"as {self.parts} part{' is' if self.parts == 1 else 's are'} not counted here"

    def makes(self, had: float, needed: float | None) -> bool:
        """Whether a wrong count is the sum of those that it has, and the right one that of all."""
        return needed is not None and is_close(self.counted, had) and is_close(self.right, needed)


def left_out(held: Entries, of_ranks: OfRanks) -> LeftOut | None:
    """The parts that a line leaves out; None if it has a wrong value.

    Where it has all of them one after the other, only the last of each rank may be kept.
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
    """Values, over and over, in calls of as many as a line's own."""
    several = [*values] * (sum(map(len, held)) // len(values)) if held else []
    ends = accumulate(map(len, held), initial=0)
    return tuple(tuple(several[start:end]) for start, end in pairwise(ends))


def counts_of_parts(
    context: StepContext, observations: Sequence[Observation]
) -> dict[str, OfRanks]:
    """The counts of each rank's micro-batches, or of the samples in these, and of the step."""
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
    """The active tokens of each part."""
    return [[float(context.step.mask[one].sum()) for one in held] for held in of_ranks]


def _samples_with_tokens(context: StepContext, of_ranks: Masks, part: NDArray[np.int64]) -> OfRanks:
    """The samples with active tokens of the parts that ranks have slices of."""
    active = {*context.sample[context.step.mask]}
    wholes = ((np.isin(part, part[one]) for one in held) for held in of_ranks)
    return [[float(len(active & {*context.sample[one]})) for one in held] for held in wholes]


def _passes(observation: Observation, step_index: int) -> NDArray[np.int32]:
    """The forward pass in which a rank held each token of a step, or -1."""
    passes = observation.forward_passes
    return passes[step_index] if passes else np.array([], np.int32)


def _numbers(passes: NDArray[np.int32]) -> list[int]:
    return [int(number) for number in np.unique(passes) if number >= 0]


def rewarded(
    objective: Objective, contexts: Sequence[StepContext], observations: Sequence[Observation]
) -> dict[str, OfRanks]:
    """Numbers that advantages are made of, of each sample of the batch or rank, group, or all."""
    if objective not in FROM_REWARDS:
        return {}
    source = advantage_terms(contexts, objective)[0].source
    assert isinstance(source, BatchAdvantages)
    groups = source.estimate.peers.groups
    firsts = sorted(np.unique(groups, return_index=True)[1].tolist())
    ranks = [[*_samples(contexts, one)] for one in observations]
    by_groups = sorted(
        range(len(groups)), key=lambda one: (np.flatnonzero(groups == groups[one])[0], one)
    )
    compared = [one for one in by_groups if np.count_nonzero(groups == groups[one]) > 1]
    orders = {
        "": [[*range(len(groups))]] * len(ranks),
        ", by groups": [by_groups] * len(ranks),
        ", by groups of several": [compared] * len(ranks),
        " of the rank": [sorted(of_rank) for of_rank in ranks],
        " of the rank, by micro-batches": ranks,
    }
    found: dict[str, OfRanks] = {}
    for name, values in _sample_values(source.estimate):
        for words, parts in orders.items():
            found[name + words] = [[float(values[one]) for one in of_rank] for of_rank in parts]
    found |= {name: [[value]] * len(ranks) for name, value in _whitening_values(source.estimate)}
    for name, values in _group_values(source.estimate):
        found[name] = [[float(values[one]) for one in firsts]] * len(ranks)
        several = [one for one in firsts if one in compared]
        found[f"{name} of several"] = [[float(values[one]) for one in several]] * len(ranks)
    return found


def _samples(contexts: Sequence[StepContext], observation: Observation) -> Iterator[int]:
    """Yield the samples of a batch that a rank holds, in the order of its micro-batches."""
    sizes = (context.step.size for context in contexts)
    for index, first in enumerate([*accumulate(sizes, initial=0)][:-1]):
        passes, sample = _passes(observation, index), contexts[index].sample
        held = (np.unique(sample[passes == number]).tolist() for number in _numbers(passes))
        yield from (first + one for one in chain.from_iterable(held))


def _sample_values(estimate: Estimate) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names with a value of each sample."""
    peers, sample = estimate.peers, estimate.rollouts.sample
    first = np.searchsorted(sample, np.arange(len(peers.rewards)))
    mean, of_others = peers.of_group(np.mean), peers.of_others(np.mean)
    yield REWARD, peers.rewards
    yield "each reward less the mean of its group", peers.rewards - mean
    yield "each reward less the mean of the others of its group", peers.rewards - of_others
    yield "the mean reward of the others of each sample's group", of_others
    yield "the sum of the rewards of the others of each sample's group", peers.of_others(np.sum)
    of_tokens = {"": estimate.advantages, " before whitening": estimate.raw}
    for words, values in of_tokens.items():
        if np.allclose(values, values[first][sample]):
            yield f"the advantage of each sample{words}", values[first]
    for name, values in _group_values(estimate):
        yield f"{name} of each sample", values


def _whitening_values(estimate: Estimate) -> Iterator[tuple[str, float]]:
    """Yield names with the statistics that advantages are whitened by."""
    if not estimate.estimator.whitens:
        return
    counted = estimate.raw[estimate.rollouts.tokens(estimate.conventions.whitened)]
    if not counted.size:
        return
    mean, spread = float(counted.mean()), float(advantages.spread(counted, estimate.conventions))
    yield "the number of tokens whose advantages are whitened", float(counted.size)
    yield "the sum of advantages before whitening", float(counted.sum())
    yield "the mean of advantages before whitening", mean
    yield "the sum of the squares that whitening averages", float(((counted - mean) ** 2).sum())
    yield "the variance of advantages before whitening", spread**2
    yield "the standard deviation of advantages before whitening", spread
    yield "1 by the standard deviation of advantages before whitening", 1 / spread


def _group_values(estimate: Estimate) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names with a value of each sample's group."""
    peers, conventions = estimate.peers, estimate.conventions
    spread = peers.of_group(advantages.std(conventions))
    yield "the number of rewards of the group", peers.size
    yield "the number of the other rewards of the group", peers.of_others(len)
    yield "the sum of the rewards of the group", peers.of_group(np.sum)
    yield "the mean reward of the group", peers.of_group(np.mean)
    yield "the standard deviation of the rewards of the group", spread
    yield (
        "the standard deviation of the rewards of the group, plus epsilon",
        spread + conventions.std_epsilon,
    )
