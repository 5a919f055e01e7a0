"""Generated steps keep the promises of their strategies, and are varied enough."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from adapters.contract import InvalidLayoutError, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.strategies import (
    batches,
    equal_groups,
    layouts,
    one_group,
    single_groups,
    steps,
    training_steps,
)
from reference.step import Step

NATIVE_LAYOUTS = layouts(NativeAdapter())


def rollouts_of_prompts(step: Step) -> list[int]:
    return [len(np.unique(step.rollouts[step.groups == g])) for g in np.unique(step.groups)]


@given(st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), training_steps(multiple=n))))
def test_training_steps_are_whole_prompts_that_share_out(drawn: tuple[int, Step]) -> None:
    multiple, step = drawn
    rollouts = rollouts_of_prompts(step)

    assert len(set(rollouts)) == 1
    assert sum(rollouts) % multiple == 0
    assert step.groups.tolist() == sorted(step.groups.tolist())
    assert step.rollouts.tolist() == sorted(step.rollouts.tolist())


@given(NATIVE_LAYOUTS.flatmap(lambda layout: st.tuples(st.just(layout), batches(layout))))
def test_steps_of_a_batch_have_a_sample_for_every_micro_batch(
    drawn: tuple[Layout, tuple[Step, ...]],
) -> None:
    layout, batch = drawn
    micro_batches = layout.micro_batches if isinstance(layout.micro_batches, int) else 1

    assert 1 <= len(batch) <= 2
    assert len({tuple(rollouts_of_prompts(step)) for step in batch}) == 1
    assert all(step.size >= layout.dp * micro_batches for step in batch)


@given(steps(min_samples=3, max_samples=5, max_response=2, max_prompt=3))
def test_steps_keep_to_their_limits(step: Step) -> None:
    assert 3 <= step.size <= 5
    assert step.response_lengths.max() <= 2
    assert step.prompt_lengths.max() <= 3


@given(steps(groups=equal_groups), steps(groups=single_groups), steps(groups=one_group))
def test_groups_are_as_asked_for(equal: Step, single: Step, one: Step) -> None:
    assert len(set(np.unique(equal.groups, return_counts=True)[1])) == 1
    assert len(set(single.groups.tolist())) == single.size
    assert len(set(one.groups.tolist())) == 1


@pytest.mark.parametrize("strategy", [steps(), training_steps(multiple=4)], ids=["steps", "of_4"])
def test_rare_things_are_frequent(strategy: SearchStrategy[Step]) -> None:
    seen = Counter[str]()
    for step in drawn_with_seed(strategy, 400):
        empty = step.active_tokens == 0
        groups = [step.active_tokens[step.groups == group] for group in np.unique(step.groups)]
        seen["an empty sample"] += bool(empty.any())
        seen["an empty group of several"] += any(len(g) > 1 and not g.any() for g in groups)
        seen["a response of one token"] += bool((step.response_lengths == 1).any())
        seen["a group split in half"] += step.groups[step.size // 2 - 1] == step.groups[-1]
        seen["several samples of a rollout"] += len(np.unique(step.rollouts)) < step.size
        seen["something to train on"] += not empty.all()

    assert all(share > 400 / 10 for share in seen.values()), seen
    assert seen["something to train on"] > 400 / 2, seen


def test_examples_do_not_depend_on_what_is_imported(tmp_path: Path) -> None:
    """hypothesis draws constants of imported source files, but reports may not depend on these."""
    strategy = batches(Layout(dp=2, micro_batches=2))
    before = [text(batch) for batch in drawn_with_seed(strategy, 100)]
    numbers = tmp_path / "numbers_of_a_framework.py"
    numbers.write_text(f"NUMBERS = {[-7, 3, 12, 55, 99, 100, 101, 255, 4096]}\n")
    spec = importlib.util.spec_from_file_location(numbers.stem, numbers)
    assert spec is not None
    sys.modules[numbers.stem] = importlib.util.module_from_spec(spec)
    after = [text(batch) for batch in drawn_with_seed(strategy, 100)]
    del sys.modules[numbers.stem]

    assert before == after


def test_layouts_fit_the_ranks_there_are() -> None:
    seen = drawn_with_seed(layouts(NativeAdapter(), max_ranks=2), 100)

    assert {layout.world_size for layout in seen} == {1, 2}
    with pytest.raises(InvalidLayoutError, match="none of 1 layouts takes at most 2 ranks"):
        layouts([Layout(dp=4)], max_ranks=2)


def drawn_with_seed(strategy: SearchStrategy[Any], examples: int) -> list[Any]:
    drawn = []

    @hypothesis.seed(1)
    @settings(max_examples=examples, database=None, deadline=None)
    @given(strategy)
    def draw(value: object) -> None:
        drawn.append(value)

    draw()
    return drawn


def text(batch: tuple[Step, ...]) -> str:
    names = ("prompt_lengths", "mask", "groups", "rollouts")
    return str([[getattr(step, name).tolist() for name in names] for step in batch])
