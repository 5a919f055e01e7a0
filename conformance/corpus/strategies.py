"""hypothesis strategies for steps, layouts and aggregations, for property tests.

For example, in a framework's own test suite::

    from hypothesis import given
    from conformance.corpus.strategies import aggregations, steps

    @given(steps(max_samples=8), aggregations())
    def test_loss(step, aggregation): ...

`steps` generates every possible step, `training_steps` those that a framework's data path makes,
`batches` and `cases` those that fit a layout. In all of them, samples and prompt groups without
active tokens and responses of a single token are frequent.

Examples shrink to few samples of one active token each, in prompt groups of one sample.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from hypothesis import strategies as st

from adapters.contract import Adapter, InvalidLayoutError, Layout
from conformance.corpus.cases import DIVISOR, Case
from conformance.findings.finding import GENERATED
from reference.aggregation import (
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
    SampleUnit,
)
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    Grouping = Callable[[int], SearchStrategy[list[int]]]

    _Turn = tuple[int, list[int]]
    """Prompt length and loss mask of a sample."""

_Drawn = TypeVar("_Drawn")

DIVISORS = (DIVISOR, 3.0, 1.0, 64.0, 40_960.0)
"""Divisors for `constant` in generated cases: integers, as some frameworks require."""

MOST_ROLLOUTS = 8
"""Largest number of rollouts of a prompt in `training_steps`."""

REWARDS = (1.0, 0.0, 0.1, 0.5, 0.3, 2.25, 0.7)
"""Rewards of `rewarded_steps`, the simplest first."""

LARGE_REWARD = 1e4
"""An offset added to rewards that differ by a few quarters."""

LONGEST_PROMPT = 60
"""Longest prompt of `training_steps`, so that whole context-parallel chunks may be prompt.

hypothesis draws integers from 100 on from the constants of imported source files. The ranges of
`training_steps` end below 100, so a seed gives the same examples whatever is imported.
"""


@cache
def masks(*, max_response: int = 12) -> SearchStrategy[list[int]]:
    """Loss masks of one response: all active, arbitrary, or all inactive; often of one token."""
    lengths = st.integers(1, max_response)
    return st.one_of(
        lengths.map(lambda length: [1] * length),
        st.lists(st.sampled_from((1, 0)), min_size=1, max_size=max_response),
        lengths.map(lambda length: [0] * length),
    )


@cache
def turns(*, max_response: int = 12) -> SearchStrategy[list[int]]:
    """Loss masks of tool use: an active stretch, an inactive one, an active one.

    Each may be empty, so responses may be all active or all inactive.
    """
    length = st.integers(0, max(max_response // 3, 1))
    stretches = st.tuples(length, length, length)
    return stretches.map(lambda of: ([1] * of[0] + [0] * of[1] + [1] * of[2])[:max_response] or [1])


def scattered_groups(samples: int) -> SearchStrategy[list[int]]:
    """Prompt groups of any size, whose samples may be anywhere in the step."""
    return st.lists(st.integers(0, samples - 1), min_size=samples, max_size=samples)


def equal_groups(samples: int) -> SearchStrategy[list[int]]:
    """Prompt groups of equal size with adjacent samples."""
    sizes = st.sampled_from([size for size in range(1, samples + 1) if samples % size == 0])
    return sizes.map(lambda size: [sample // size for sample in range(samples)])


def single_groups(samples: int) -> SearchStrategy[list[int]]:
    """A prompt group for each sample."""
    return st.just(list(range(samples)))


def one_group(samples: int) -> SearchStrategy[list[int]]:
    """One prompt group for all samples."""
    return st.just([0] * samples)


@st.composite
def steps(
    draw: DrawFn,
    *,
    min_samples: int = 1,
    max_samples: int = 12,
    max_response: int = 12,
    max_prompt: int = 8,
    groups: Grouping = scattered_groups,
) -> Step:
    """Steps with any masks and rollouts, and prompt groups drawn from ``groups``.

    ``groups`` is one of `scattered_groups`, `equal_groups`, `single_groups` and `one_group`, or any
    function from the number of samples to a strategy for the list of their groups.
    """
    size = draw(st.integers(min_samples, max_samples))
    group_of_sample = draw(groups(size))
    rollouts = draw(scattered_groups(size))
    silent = draw(_silent(group_of_sample))
    sample = st.tuples(st.integers(1, max_prompt), masks(max_response=max_response))
    samples = draw(st.tuples(*[sample] * size))
    return Step.of(
        [
            Sample(
                prompt_length=prompt,
                loss_mask=[0] * len(mask) if group in silent else mask,
                group=group,
                rollout=rollout,
            )
            for (prompt, mask), group, rollout in zip(
                samples, group_of_sample, rollouts, strict=True
            )
        ]
    )


@st.composite
def rewarded_steps(draw: DrawFn, *, max_samples: int = 12, max_response: int = 12) -> Step:
    """Steps with given rewards, in which each rollout belongs to one prompt.

    Rewards are arbitrary, all equal, equal except one, or large. In some steps, rejection sampling
    has removed whole samples, or samples lack a reward.
    """
    step = draw(steps(max_samples=max_samples, max_response=max_response))
    rejected, lacking = draw(st.tuples(_some(step.size), _some(step.size)))
    kept = ~np.repeat(rejected, step.response_lengths)
    return replace(
        step,
        mask=step.mask & kept,
        original_mask=step.mask if any(rejected) else None,
        rollouts=step.groups * step.size + step.rollouts,
        rewards=np.where(lacking, np.nan, draw(_rewards(step.size))),
    )


def _rewards(samples: int) -> SearchStrategy[list[float]]:
    """Rewards that are arbitrary, equal, equal except one, or large."""
    decimals = _each(st.sampled_from(REWARDS), samples)
    equal = st.sampled_from(REWARDS).map(lambda reward: [reward] * samples)
    but_for_one = st.tuples(equal, st.integers(0, samples - 1), st.sampled_from(REWARDS)).map(
        lambda of: [*of[0][: of[1]], of[2], *of[0][of[1] + 1 :]]
    )
    offsets = _each(st.integers(0, 16), samples)
    large = offsets.map(lambda quarters: [LARGE_REWARD + quarter / 4 for quarter in quarters])
    return st.one_of(decimals, equal, but_for_one, large)


def _some(samples: int) -> SearchStrategy[list[bool]]:
    """Choose samples: one boolean for each, often all False."""
    return st.one_of(st.just([False] * samples), _each(st.booleans(), samples))


def _each(values: SearchStrategy[_Drawn], samples: int) -> SearchStrategy[list[_Drawn]]:
    """A value for each sample."""
    return st.lists(values, min_size=samples, max_size=samples)


@st.composite
def training_steps(draw: DrawFn, *, multiple: int = 1, max_response: int = 12) -> Step:
    """Steps as a framework's data path makes them.

    Every prompt has the same number of adjacent rollouts, and the number of all rollouts is a
    multiple of ``multiple``. In some steps rollouts have up to three samples, as in multi-turn
    training; prompts may then differ in samples.
    """
    return draw(draw(_shaped_steps(multiple, max_response)))


@st.composite
def batches(draw: DrawFn, layout: Layout, *, max_response: int = 12) -> tuple[Step, ...]:
    """One or two `training_steps` of one batch of rollouts that a layout can cut.

    The steps have the same number of prompts and the same number of rollouts for each prompt.
    """
    whole = layout.micro_batches if isinstance(layout.micro_batches, int) else 1
    step = draw(_shaped_steps(layout.dp * whole, max_response))
    size = draw(st.integers(1, 2))
    return draw(st.tuples(*[step] * size))


def cases(
    layout: Layout, *, divisors: Sequence[float] = DIVISORS, max_response: int = 12
) -> SearchStrategy[Case]:
    """Cases for a layout; L of `constant` is one of ``divisors``."""
    return st.builds(
        Case,
        name=st.just(GENERATED),
        catches=st.just("whatever no named case catches"),
        steps=batches(layout, max_response=max_response),
        divisor=st.sampled_from(divisors),
    )


def layouts(of: Adapter | Sequence[Layout], *, max_ranks: int = 8) -> SearchStrategy[Layout]:
    """Layouts of an adapter or list that need at most ``max_ranks`` ranks.

    Raises:
        InvalidLayoutError: no layout fits.
    """
    candidates = of.layouts() if isinstance(of, Adapter) else of
    fitting = [layout for layout in candidates if layout.world_size <= max_ranks]
    if not fitting:
        raise InvalidLayoutError(
            f"none of {len(candidates)} layouts takes at most {max_ranks} ranks", "raise max_ranks"
        )
    return st.sampled_from(sorted(fitting, key=lambda layout: layout.world_size))


def aggregations() -> SearchStrategy[Aggregation]:
    """Aggregations of every mode; `constant` has integer and other divisors from 1 to 100,000."""
    divisors = st.one_of(st.integers(1, 100_000), st.floats(1, 1e5))
    return st.one_of(
        st.sampled_from([mode for mode in Mode if mode is not Mode.CONSTANT]).map(Aggregation),
        divisors.map(lambda divisor: Aggregation(Mode.CONSTANT, divisor)),
    )


def conventions() -> SearchStrategy[Conventions]:
    """Every combination of conventions."""
    return st.builds(
        Conventions,
        sample_unit=st.sampled_from(SampleUnit),
        empty_units=st.sampled_from(EmptyUnits),
        denominator_mask=st.sampled_from(DenominatorMask),
    )


# When hypothesis shrinks, it lowers the number of parts and then drops a part that is a single
# draw. So the strategies below draw a number of parts first, and then a tuple of so many parts.


@st.composite
def _shaped_steps(draw: DrawFn, multiple: int, max_response: int) -> SearchStrategy[Step]:
    """Steps with fixed numbers of prompts and of rollouts per prompt.

    The total number of rollouts is a multiple of ``multiple``. The largest number of turns of a
    rollout is fixed, too.
    """
    most = max(12, 3 * multiple)
    turns_of_rollout = draw(st.sampled_from((1, 1, 3)))
    fitting = [r for r in range(1, MOST_ROLLOUTS + 1) if lcm(r, multiple) <= most]
    rollouts = draw(st.sampled_from(fitting))
    smallest = lcm(rollouts, multiple)
    group = _groups(rollouts, turns_of_rollout, max_response)
    groups = st.tuples(*[group] * (smallest // rollouts))
    size = draw(st.sampled_from(range(1, most // smallest + 1)))
    return st.tuples(*[groups] * size).map(lambda parts: _grouped_step(list(chain(*parts))))


@cache
def _groups(
    rollouts: int, turns_of_rollout: int, max_response: int
) -> SearchStrategy[tuple[list[_Turn], ...]]:
    """The rollouts of a prompt, each a list of samples; sometimes all without active tokens."""
    turn = st.tuples(st.integers(1, LONGEST_PROMPT), turns(max_response=max_response))
    one_turn = turn.map(lambda only: [only])
    several = st.lists(turn, min_size=1, max_size=turns_of_rollout)
    group = st.tuples(*[one_turn if turns_of_rollout == 1 else several] * rollouts)
    return st.one_of(*[group] * 15, group.map(_silenced))


def _silenced(group: tuple[list[_Turn], ...]) -> tuple[list[_Turn], ...]:
    return tuple([(prompt, [0] * len(mask)) for prompt, mask in rollout] for rollout in group)


def _grouped_step(groups: list[tuple[list[_Turn], ...]]) -> Step:
    rollouts = [(group, rollout) for group, members in enumerate(groups) for rollout in members]
    return Step.of(
        [
            Sample(prompt_length=prompt, loss_mask=mask, group=group, rollout=index)
            for index, (group, turns_of_rollout) in enumerate(rollouts)
            for prompt, mask in turns_of_rollout
        ]
    )


def _silent(groups: list[int]) -> SearchStrategy[frozenset[int]]:
    """The groups without active tokens: none in most steps."""
    none: frozenset[int] = frozenset()
    one = st.sampled_from(groups).map(lambda group: frozenset({group}))
    some = st.frozensets(st.sampled_from(groups))
    return st.one_of(st.just(none), st.just(none), one, some)
