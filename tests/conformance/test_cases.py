"""The corpus is what it says, and every case kills a mistake it is meant to catch."""

from __future__ import annotations

import pytest

from conformance.cases import CORPUS, DIVISOR, Case
from reference.aggregation import Aggregation, Mode
from reference.weights import sample_weights


def test_names_are_unique() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_every_step_fits_four_ranks_with_two_micro_batches(case: Case) -> None:
    assert case.fewest_samples >= 8


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_divisor_cannot_be_taken_for_a_count(case: Case) -> None:
    for step in case.steps:
        counts = {len(step), len(step.mask), int(step.active_tokens.sum())}
        assert DIVISOR not in counts


def case(name: str) -> Case:
    [found] = [one for one in CORPUS if one.name == name]
    return found


def test_uneven_lengths_tell_all_modes_apart() -> None:
    [step] = case("uneven_lengths").steps
    weights = {
        tuple(sample_weights(step, Aggregation(mode, 40 if mode is Mode.CONSTANT else None)))
        for mode in Mode
    }

    assert len(weights) == len(Mode)


def test_fully_masked_cases_have_what_they_are_named_after() -> None:
    [masked_sample] = case("fully_masked_sample").steps
    [masked_group] = case("fully_masked_group").steps
    [one_token] = case("one_token").steps
    masked = masked_group.groups[masked_group.active_tokens == 0]

    assert (masked_sample.active_tokens == 0).sum() == 1
    assert masked.tolist() == [1, 1]
    assert one_token.active_tokens.sum() == 1


def test_long_prompts_fill_whole_chunks_and_short_responses_leave_ranks_empty() -> None:
    [long_prompts] = case("long_prompts").steps
    [short] = case("short_responses").steps
    totals = long_prompts.prompt_lengths + long_prompts.response_lengths

    assert (long_prompts.prompt_lengths > totals / (2 * 2)).all()
    assert (short.response_lengths < 2 * 2).all()


@pytest.mark.parametrize("cuts", [2, 4, 8])
def test_split_groups_are_split_by_every_cut(cuts: int) -> None:
    [step] = case("split_groups").steps
    size = len(step) // cuts
    borders = range(size, len(step), size)

    assert any(step.groups[border - 1] == step.groups[border] for border in borders)


@pytest.mark.parametrize("dp", [2, 4])
def test_unequal_shards_hold_unequal_tokens(dp: int) -> None:
    [step] = case("unequal_shards").steps
    tokens = step.active_tokens.reshape(dp, -1).sum(axis=1)

    assert tokens.max() > 2 * tokens.min()


def test_unequal_groups_have_equally_many_rollouts_of_unequal_samples() -> None:
    [step] = case("unequal_groups").steps
    sizes = [(step.groups == group).sum() for group in set(step.groups.tolist())]

    assert len(set(sizes)) > 1


def test_two_steps_have_different_denominators() -> None:
    first, second = case("two_steps").steps

    assert first.active_tokens.sum() != second.active_tokens.sum()
