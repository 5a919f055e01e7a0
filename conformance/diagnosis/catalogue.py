"""The known mistakes, each with the weights it would give.

A mistake is a way of counting: other tokens, other units, a part of the step, or the right count
multiplied or divided by a size that has nothing to do with it. What the mistakes have in common is
one formula, 1 / (units · tokens of the unit), of which each gets one factor wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.diagnosis.placement import Cut, cut_of
from conformance.findings.errors import UnknownCutError
from reference.aggregation import (
    Aggregation,
    Beside,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    MicroBatchWeight,
    Mode,
    SampleUnit,
    beside,
)
from reference.weights import counted_tokens, token_weights, unit_of_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from reference.step import Step


COARSE_DTYPES = {"bfloat16": (8, 3.4e38), "float16": (11, 65504.0)}
"""Significant bits, above 2 to whose power there are no odd numbers, and the largest number."""


class ExpectedNumber(NamedTuple):
    """A number of the reference's, and in words all that it may depend on besides the case.

    Within a run, all of one name and case must be equal: mode, layout and micro-batches appear in
    the name where the number may depend on them.
    """

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """One optimizer step of a batch, how it was to be reduced and how it was cut."""

    steps: tuple[Step, ...]
    number: int
    aggregation: Aggregation
    conventions: Conventions
    layout: Layout
    held: NDArray[np.int32] | None
    """In which forward pass each rank held each token, if that is known: [ranks, tokens]."""

    per_micro_batch: bool = False
    """Whether the aggregation is that of each micro-batch, of which a mean is taken."""

    @cached_property
    def untrained(self) -> NDArray[np.bool_]:
        """Tokens that no rank held, as far as is known: [tokens]."""
        if self.held is None:
            return np.zeros(len(self.step.mask), np.bool_)
        untrained: NDArray[np.bool_] = np.less(self.held.max(axis=0), 0)
        return untrained

    @cached_property
    def cut(self) -> Cut | None:
        """How the step was cut; None where that is not known of every token."""
        if self.held is None or self.untrained.any():
            return None
        return cut_of(self.held, self.layout)

    @property
    def step(self) -> Step:
        """The one that is looked at."""
        return self.steps[self.number]

    @property
    def mode(self) -> Mode:
        """Of the aggregation."""
        return self.aggregation.mode

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """The reference's weights: [tokens]."""
        if self.per_micro_batch:
            return self.micro_batch_means
        return token_weights(self.step, self.aggregation, self.conventions)

    def of_term(self, how: Beside | None) -> Situation:
        """The same step, with the policy's aggregation replaced by that of a term beside it."""
        if how is None:
            return self
        aggregation = beside(self.aggregation, how)
        return replace(self, aggregation=aggregation, per_micro_batch=how.depends_on_cut)

    @property
    def fingerprint(self) -> ExpectedNumber:
        """One number for all expected weights, under the name of what they may depend on."""
        ordinals = np.arange(1, len(self.expected) + 1)
        return ExpectedNumber(f"weights of {self.scope}", math.fsum(self.expected * ordinals))

    @property
    def scope(self) -> str:
        """All that the expected weights may depend on, besides the case."""
        divisor = "" if self.aggregation.divisor is None else f":{self.aggregation.divisor:g}"
        weight = self.conventions.micro_batch_weight
        where = f" of {weight} micro-batches on {self.layout}" if self.per_micro_batch else ""
        return f"step {self.number}, {self.mode}{divisor}{where}"

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Number of the sample that each response token belongs to: [tokens]."""
        return np.repeat(np.arange(self.step.size), self.step.response_lengths)

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """Number of the unit that each sample belongs to, as in the reference: [N]."""
        return unit_of_sample(self.step, self.mode, self.conventions)

    @property
    def counted(self) -> NDArray[np.int64]:
        """Tokens of each sample that denominators count: [N]."""
        return counted_tokens(self.step, self.conventions)

    @property
    def units(self) -> int:
        """How many there are, or count."""
        tokens = np.bincount(self.unit, weights=self.counted)
        counted = self.conventions.empty_units is EmptyUnits.COUNTED
        return len(tokens) if counted else max(int((tokens > 0).sum()), 1)

    @cached_property
    def micro_batch_means(self) -> NDArray[np.float64]:
        """Weights in a mean over ranks and micro-batches of each one's own mean: [tokens].

        That is one over its tokens, or over its samples where the mode is `sample_mean`. What has
        no active token adds 0 and counts; what only pads does not.
        """
        if self.cut is None:
            raise UnknownCutError(
                f"{self.aggregation.mode} of micro-batches is declared, and not in which forward"
                " pass every token was; have the adapter tell its forward passes"
            )
        batch = self.cut.micro_batch_number
        micro_batches = (self.cut.micro_batches * self.layout.dp).astype(np.float64)
        if self.conventions.micro_batch_weight is MicroBatchWeight.BY_SAMPLES:
            micro_batches = _by_samples(self, self.cut)
        if self.mode is Mode.SAMPLE_MEAN:
            return self.weights(units=micro_batches * _units_held(self.sample, batch))
        tokens = np.bincount(batch, weights=self.step.mask).astype(np.float64)[batch]
        return self.weights(tokens, micro_batches)

    def weights(
        self,
        tokens: NDArray[np.float64] | None = None,
        units: NDArray[np.float64] | float | None = None,
    ) -> NDArray[np.float64]:
        """1 / (units · tokens) for active tokens: [tokens].

        ``tokens`` [N or tokens] replaces the tokens of a unit, and ``units`` their number.
        """
        counted = self.unit_tokens if tokens is None else tokens
        per_token = counted[self.sample] if len(counted) == self.step.size else counted
        counted_units = self.units if units is None else units
        denominators = np.broadcast_to(counted_units * per_token, self.step.mask.shape)
        active = self.step.mask & (denominators > 0)
        return np.divide(1.0, denominators, out=np.zeros(len(active)), where=active)

    @cached_property
    def unit_tokens(self) -> NDArray[np.float64]:
        """Tokens of the unit of each sample, or L: [N]."""
        return self.tokens_if(self.counted)

    def tokens_if(self, of_samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tokens of the unit of each sample, if samples had so many; or L: [N]."""
        if self.aggregation.divisor is not None:
            return np.full(self.step.size, self.aggregation.divisor)
        tokens = np.bincount(self.unit, weights=of_samples)
        return tokens[self.unit].astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistake:
    """A known one: its name, what it is in words, its weights [tokens].

    ``sizes`` are those that a factor may be, of a mistake that is a factor.
    """

    name: str
    words: str
    weights: NDArray[np.float64]
    sizes: dict[str, float] = field(default_factory=dict)


def mistakes(situation: Situation) -> Iterator[Mistake]:
    """Every one that is possible here, those that explain most plainly first.

    A size of the layout comes before another way of counting, and that before a size of the step,
    which small steps hit by chance. A single active token has one weight alone, which tells a
    factor from nothing: there, other ways of counting come first.
    """
    yield from filled_up(situation)
    if np.count_nonzero(situation.step.mask) == 1:
        yield from _other_tokens(situation)
        yield from _undivided(situation)
    yield from _layout_factors(situation)
    yield from _undivided(situation)
    yield from _other_steps(situation)
    yield from _other_mask(situation)
    yield from _other_tokens(situation)
    yield from _off_by_the_same(situation)
    yield from _other_prompts(situation)
    yield from _other_modes(situation)
    yield from _other_conventions(situation)
    yield from _other_units(situation)
    yield from _parts(situation)
    yield from _rounded_counts(situation)
    yield from _step_factors(situation)


def _counted_mask(situation: Situation) -> NDArray[np.bool_]:
    """The mask of which denominators are: [tokens]."""
    original = situation.step.original_mask
    modified = situation.conventions.denominator_mask is DenominatorMask.MODIFIED
    return situation.step.mask if modified or original is None else original


def _layout_sizes(situation: Situation) -> dict[str, float]:
    layout = situation.layout
    sizes: dict[str, float] = {"dp": layout.dp, "cp": layout.cp}
    if layout.dp > 1 and layout.cp > 1:
        sizes["dp_cp"] = layout.dp * layout.cp
    micro_batches = _micro_batches_per_rank(situation)
    if micro_batches is not None:
        sizes["micro_batches"] = micro_batches
    return sizes


def _micro_batches_per_rank(situation: Situation) -> int | None:
    """How many the ranks have, if they have equally many."""
    if isinstance(situation.layout.micro_batches, int):
        return situation.layout.micro_batches
    if situation.cut is None:
        return None
    counts = np.unique(situation.cut.micro_batches)
    return int(counts[0]) if len(counts) == 1 else None


def _step_sizes(situation: Situation) -> dict[str, float]:
    step = situation.step
    rollouts = [len(np.unique(step.rollouts[step.groups == g])) for g in np.unique(step.groups)]
    sizes: dict[str, float] = {
        "group_size": max(rollouts),
        "prompts": len(rollouts),
        "samples": step.size,
    }
    if situation.aggregation.divisor is not None:
        sizes["divisor"] = situation.aggregation.divisor
    return sizes


def filled_up(situation: Situation) -> Iterator[Mistake]:
    """What only fills ranks or micro-batches up, counted in a mean over micro-batches."""
    cut = situation.cut
    if cut is None or not situation.per_micro_batch:
        return
    most = cut.micro_batches.max()
    for name, words, shares in (
        (
            "padding_micro_batches_averaged",
            f"micro-batches of padding count as 0 in means over {most} of each rank",
            cut.micro_batches / most,
        ),
        *_dummy_rows(situation, cut),
    ):
        if (shares != 1)[situation.expected > 0].any():
            yield Mistake(name=name, words=words, weights=situation.expected * shares)


def _dummy_rows(situation: Situation, cut: Cut) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """What rows without active tokens make of the weights, as multiples of the right ones."""
    name = "dummy_rows_averaged"
    rows = _units_held(situation.sample, cut.micro_batch_number)
    averages_samples = situation.mode is Mode.SAMPLE_MEAN
    if averages_samples:
        largest = np.zeros(situation.layout.dp)
        np.maximum.at(largest, cut.dp_rank, rows)
        words = "rows that fill a micro-batch up to the rank's largest count as 0 in its mean"
        yield name, words, rows / largest[cut.dp_rank]
    of_rank = _units_held(situation.sample, cut.dp_rank)
    most = of_rank.max()
    last = cut.micro_batch == cut.micro_batches - 1
    filled = rows + np.where(last, most - of_rank, 0)
    shares = rows / filled if averages_samples else np.ones(len(rows))
    if situation.conventions.micro_batch_weight is MicroBatchWeight.BY_SAMPLES:
        shares = shares * (filled / rows) * (of_rank / most)
    words = f"rows that fill a rank's last micro-batch, up to {most:g} of the rank, count in means"
    yield name, words, shares


def _layout_factors(situation: Situation) -> Iterator[Mistake]:
    """A factor that is a size of the layout, and perhaps one of the step as well."""
    layout_sizes = _layout_sizes(situation)
    for value, names in _alike(layout_sizes | _step_sizes(situation)).items():
        if layout_sizes.keys() & set(names):
            yield from _factor(situation, value, names)


def _step_factors(situation: Situation) -> Iterator[Mistake]:
    """A factor that is a size of the step and none of the layout."""
    layout_sizes = _layout_sizes(situation)
    for value, names in _alike(layout_sizes | _step_sizes(situation)).items():
        if not layout_sizes.keys() & set(names):
            yield from _factor(situation, value, names)


def _alike(sizes: dict[str, float]) -> dict[float, list[str]]:
    """The names of each size: which of them was meant, no weight can tell."""
    names: dict[float, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size != 1:
            names[size].append(name)
    return names


def _factor(situation: Situation, value: float, names: list[str]) -> Iterator[Mistake]:
    for verb, factor in (("divided", 1 / value), ("multiplied", value)):
        yield Mistake(
            name=f"{verb}_by_{'_or_'.join(names)}",
            words=f"{verb} once too often by {' or '.join(names)} = {value:g}",
            weights=situation.expected * factor,
            sizes=dict.fromkeys(names, value),
        )


def _undivided(situation: Situation) -> Iterator[Mistake]:
    """Every token weighs 1, or what averaging over ranks or micro-batches makes of 1."""
    ones = (situation.expected > 0).astype(np.float64)
    words = "token losses are added up and not divided"
    yield Mistake(name="not_divided", words=words, weights=ones)
    for value, names in _alike(_layout_sizes(situation)).items():
        averaged = f"{words}, but for an average over {' or '.join(names)} = {value:g}"
        yield Mistake(name="not_divided", words=averaged, weights=ones / value)


def _other_mask(situation: Situation) -> Iterator[Mistake]:
    """The mask that the framework declares not to count, where rejection has made two of one."""
    declared = situation.conventions
    for mask in DenominatorMask:
        if mask is not declared.denominator_mask and situation.step.original_mask is not None:
            other = replace(declared, denominator_mask=mask)
            yield Mistake(
                name=f"{mask}_mask_counted",
                words=f"denominators count the tokens of the {mask} mask",
                weights=token_weights(situation.step, situation.aggregation, other),
            )


def _other_tokens(situation: Situation) -> Iterator[Mistake]:
    """The mode with other tokens counted for its samples."""
    step = situation.step
    if situation.mode is Mode.CONSTANT:
        return
    for name, words, counts in (
        (
            "empty_samples_counted",
            "a sample without active tokens is counted as one token",
            np.maximum(situation.counted, 1),
        ),
        ("masked_tokens_counted", "masked tokens are counted", step.response_lengths),
        (
            "prompt_tokens_counted",
            "prompts are counted with their responses",
            step.prompt_lengths + step.response_lengths,
        ),
        *_paddings(situation),
    ):
        weights = situation.weights(situation.tokens_if(counts))
        yield Mistake(name=name, words=words, weights=weights)


def _paddings(situation: Situation) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """What samples count if padding does, up to the longest in the step or the micro-batch."""
    step = situation.step
    for what, lengths in (
        ("response", step.response_lengths),
        ("sequence", step.prompt_lengths + step.response_lengths),
    ):
        words = f"padding up to the longest {what} of the"
        yield "padding_counted", f"{words} step is counted", np.full(step.size, lengths.max())
        if situation.cut is not None:
            micro_batch = _of_samples(situation, situation.cut.micro_batch_number)
            widest = np.zeros(micro_batch.max() + 1, np.int64)
            np.maximum.at(widest, micro_batch, lengths)
            yield "padding_counted", f"{words} micro-batch is counted", widest[micro_batch]


def _off_by_the_same(situation: Situation) -> Iterator[Mistake]:
    """Each sample counts one or two tokens more or less than it has, as for an end of sequence."""
    if situation.mode is Mode.CONSTANT:
        return
    tokens = situation.counted
    for difference in (1, -1, 2, -2):
        counts = np.where(tokens > 0, np.maximum(tokens + difference, 0), 0)
        counted = np.maximum(situation.tokens_if(counts), 1)
        sign = "more" if difference > 0 else "less"
        yield Mistake(
            name="tokens_per_sample_miscounted",
            words=f"every sample counts {abs(difference)} token {sign} than it has",
            weights=situation.weights(counted),
        )


def _other_modes(situation: Situation) -> Iterator[Mistake]:
    """The weights of a mode that was not asked for."""
    for mode in Mode:
        if mode not in (situation.mode, Mode.CONSTANT):
            weights = token_weights(situation.step, Aggregation(mode), situation.conventions)
            words = f"these are the weights of {mode}"
            yield Mistake(name=f"weights_of_{mode}", words=words, weights=weights)
    if situation.mode is not Mode.TOKEN_MEAN:
        per_token = replace(situation, aggregation=Aggregation(Mode.TOKEN_MEAN))
        counts = per_token.tokens_if(np.maximum(per_token.counted, 1))
        yield Mistake(
            name="weights_of_token_mean_counting_empty_samples",
            words="these are the weights of token_mean with an empty sample counted as one token",
            weights=per_token.weights(counts),
        )


def _other_conventions(situation: Situation) -> Iterator[Mistake]:
    """What the framework declares not to do."""
    declared = situation.conventions
    for unit, empty in product(SampleUnit, EmptyUnits):
        other = replace(declared, sample_unit=unit, empty_units=empty)
        if other != declared:
            yield Mistake(
                name=f"{unit}_units_{empty}",
                words=f"{unit}s are the units and empty ones are {empty}",
                weights=token_weights(situation.step, situation.aggregation, other),
            )


def _other_units(situation: Situation) -> Iterator[Mistake]:
    """Something else counted in the place of samples or prompts."""
    step = situation.step
    if situation.mode is Mode.TOKEN_MEAN:
        return
    units = "prompts" if situation.mode is Mode.PROMPT_MEAN else "samples"
    for what, count in (
        ("samples", step.size),
        ("rollouts", len(np.unique(step.rollouts))),
        ("prompts", len(np.unique(step.groups))),
        ("tokens", max(int(situation.counted.sum()), 1)),
    ):
        if count != situation.units:
            yield Mistake(
                name=f"{what}_counted_as_{units}",
                words=f"{count} {what} are counted in the place of {situation.units} {units}",
                weights=situation.weights(units=count),
            )


def _other_prompts(situation: Situation) -> Iterator[Mistake]:
    """Prompts told from each other, or counted, by a rule that not every step follows."""
    step = situation.step
    if situation.mode is not Mode.PROMPT_MEAN:
        return
    starts = np.diff(step.groups, prepend=step.groups[0]) != 0
    run = np.cumsum(starts)
    tokens = np.bincount(run, weights=situation.counted)[run]
    yield Mistake(
        name="runs_counted_as_prompts",
        words=f"{run[-1] + 1} runs of adjacent samples are taken for {situation.units} prompts",
        weights=situation.weights(tokens, float(run[-1] + 1)),
    )
    group_size = np.bincount(situation.unit).max()
    yield Mistake(
        name="prompts_by_group_size",
        words=f"prompts are taken to be {step.size} samples / {group_size} of a prompt",
        weights=situation.weights(units=step.size / float(group_size)),
    )


def _parts(situation: Situation) -> Iterator[Mistake]:
    """Denominators of what one rank, micro-batch or context-parallel slice holds of the step."""
    if situation.cut is None:
        return
    for part in _cut_into(situation.cut, situation.layout):
        if part.count.max() > 1:
            yield from _of_parts(situation, part)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """One way of seeing a step in parts."""

    name: str
    label: NDArray[np.int64]
    """Of the part that holds a token: [tokens]."""

    whole: NDArray[np.int64]
    """Of the part, with the rest of its sequences that other ranks hold: [tokens]."""

    count: NDArray[np.int64]
    """How many parts their means are averaged over: [tokens]."""

    slices: int = 1
    """How many of them are of the same sequences."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


def _cut_into(cut: Cut, layout: Layout) -> Iterator[_Part]:
    dp, cp = cut.dp_rank, cut.cp_rank
    micro_batch = cut.micro_batch_number
    ranks, slices = layout.dp, layout.cp
    micro_batches = ranks * cut.micro_batches
    yield _Part(name="rank", label=dp, whole=dp, count=np.full_like(dp, ranks))
    yield _Part(name="micro_batch", label=micro_batch, whole=micro_batch, count=micro_batches)
    most = int(micro_batches.max())
    if (micro_batches < most).any():  # ranks with fewer are given some of padding alone
        yield _Part(
            name="micro_batch_or_padding",
            label=micro_batch,
            whole=micro_batch,
            count=np.full_like(dp, most),
        )
    if slices > 1:
        yield _Part(
            name="cp_slice",
            label=dp * slices + cp,
            whole=dp,
            count=np.full_like(dp, ranks * slices),
            slices=slices,
        )
        yield _Part(
            name="cp_slice_of_a_micro_batch",
            label=micro_batch * slices + cp,
            whole=micro_batch,
            count=micro_batches * slices,
            slices=slices,
        )


def _of_samples(situation: Situation, of_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """What all tokens of a sample have in common, by sample: [N]."""
    return of_tokens[situation.step.offsets[:-1]]


def _of_parts(situation: Situation, part: _Part) -> Iterator[Mistake]:
    """Both counts taken per part and the parts averaged; or one of the two alone."""
    unit = situation.unit[situation.sample]
    units = _units_held(unit, part.whole)
    words = f"counted per {part.words} and averaged over {int(part.count.max())}"
    tokens = None
    if situation.mode is not Mode.CONSTANT:
        tokens = _tokens_held(unit, part.label, _counted_mask(situation))
        yield from _of_tokens_held(situation, part, tokens)
        if part.name == "micro_batch" and situation.mode is Mode.TOKEN_MEAN:
            yield _means_by_samples(situation, tokens)
    yield Mistake(
        name=f"denominators_per_{part.name}",
        words=f"denominators are {words}",
        weights=situation.weights(tokens, units * part.count),
    )
    if situation.mode is Mode.PROMPT_MEAN:
        yield Mistake(
            name=f"units_counted_per_{part.name}",
            words=f"prompts are {words}",
            weights=situation.weights(units=units * part.count),
        )


def _of_tokens_held(
    situation: Situation, part: _Part, tokens: NDArray[np.float64]
) -> Iterator[Mistake]:
    """Tokens counted per part and units in the whole step: the parts' means added, or averaged."""
    yield Mistake(
        name=f"tokens_counted_per_{part.name}",
        words=f"tokens are counted per {part.words}",
        weights=situation.weights(tokens),
    )
    for count in {int(part.count.max()), part.slices} - {1}:
        yield Mistake(
            name=f"denominators_per_{part.name}",
            words=f"tokens are counted per {part.words} and means averaged over {count}",
            weights=situation.weights(tokens, float(situation.units * count)),
        )


def _means_by_samples(situation: Situation, tokens: NDArray[np.float64]) -> Mistake:
    assert situation.cut is not None
    return Mistake(
        name="denominators_per_micro_batch_by_samples",
        words="tokens are counted per micro batch and means weighted by samples",
        weights=situation.weights(tokens, _by_samples(situation, situation.cut)),
    )


def _by_samples(situation: Situation, cut: Cut) -> NDArray[np.float64]:
    """What a token's micro-batch is divided by where it weighs its share of samples: [tokens]."""
    of_rank = _units_held(situation.sample, cut.dp_rank) * situation.layout.dp
    return of_rank / _units_held(situation.sample, cut.micro_batch_number)


def _tokens_held(
    unit: NDArray[np.int64], label: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Tokens of a token's unit that its part holds, of those in a mask: [tokens]."""
    place = unit * (int(label.max()) + 1) + label
    tokens: NDArray[np.float64] = np.bincount(place, weights=mask)[place]
    return tokens


def _units_held(unit: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.float64]:
    """Number of units of which a token's part holds something: [tokens]."""
    held = np.unique(np.stack([label, unit]), axis=1)[0]
    return np.bincount(held).astype(np.float64)[label]


def _other_steps(situation: Situation) -> Iterator[Mistake]:
    """Denominators of the whole batch of rollouts, or of the step before."""
    for name, words, others in (
        ("counted_over_batch", "of all steps of the batch together", situation.steps),
        (
            "counted_of_the_step_before",
            "of the step before",
            situation.steps[: situation.number][-1:],
        ),
    ):
        if len(situation.steps) == 1 or not others:
            continue
        units = sum(_units(situation, step) for step in others)
        tokens = None
        if situation.mode is Mode.TOKEN_MEAN:
            units = 1
            counted = sum(int(counted_tokens(step, situation.conventions).sum()) for step in others)
            tokens = np.full(situation.step.size, float(counted))
        weights = situation.weights(tokens, units)
        yield Mistake(name=name, words=f"what is counted is that {words}", weights=weights)


def _units(situation: Situation, step: Step) -> int:
    return int(unit_of_sample(step, situation.mode, situation.conventions).max()) + 1


def _rounded_counts(situation: Situation) -> Iterator[Mistake]:
    """Counts that a dtype cannot hold, and whole numbers divided as such."""
    if situation.mode is Mode.CONSTANT:
        return
    tokens = situation.unit_tokens
    for dtype, (bits, largest) in COARSE_DTYPES.items():
        yield Mistake(
            name=f"counted_in_{dtype}",
            words=f"tokens are counted in {dtype}, which has no odd numbers above {2**bits}",
            weights=situation.weights(_rounded(tokens, bits, largest)),
        )
    yield Mistake(
        name="counted_in_float32",
        words=f"tokens are added up in float32, in which {2**24} + 1 is {2**24}",
        weights=situation.weights(_added_in_float32(situation)),
    )
    members = np.bincount(situation.unit)[situation.unit]
    for what, count in (("samples", members), ("dp", np.full_like(members, situation.layout.dp))):
        yield Mistake(
            name="integer_division",
            words=f"tokens per {what} are cut to a whole number before they are multiplied again",
            weights=situation.weights(count * (tokens // count)),
        )


def _added_in_float32(situation: Situation) -> NDArray[np.float64]:
    """Tokens of the unit of each sample, sample by sample: [N]."""
    tokens = situation.counted.astype(np.float32)
    totals = [
        float(np.cumsum(tokens[situation.unit == unit], dtype=np.float32)[-1])
        for unit in range(int(situation.unit.max()) + 1)
    ]
    return np.array(totals)[situation.unit]


def _rounded(counts: NDArray[np.float64], bits: int, largest: float) -> NDArray[np.float64]:
    """To nearest, ties to even, with so many significant bits, up to the largest number."""
    mantissas, exponents = np.frexp(counts)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissas * 2**bits), exponents - bits)
    return np.where(rounded > largest, np.inf, rounded)
