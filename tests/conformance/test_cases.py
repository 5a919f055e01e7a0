"""The corpus is what it says, and every case kills a mistake it is meant to catch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adapters.contract import Depth, Job, Layout
from adapters.contract.probed_batch import ProbedBatch
from adapters.native.adapter import NativeAdapter
from adapters.native.trainer import Trainer
from conformance.corpus.cases import CORPUS, Case
from conformance.runs import registry
from reference.aggregation import Aggregation, Mode
from reference.step import Step
from reference.weights import sample_weights, token_weights

EVERY_CASE = pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)

EVERY_ADAPTER = pytest.mark.parametrize(
    "adapter",
    [one for name in registry.known() for one in registry.adapter_classes(name).values()],
    ids=lambda adapter: f"{adapter.name}-{adapter.engine}",
)


def test_names_are_unique() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS)


@EVERY_CASE
def test_every_case_says_in_a_line_what_it_catches_and_where_that_is_known_from(case: Case) -> None:
    for line in (case.catches, case.source):
        assert 0 < len(line) <= 90
        assert "\n" not in line


@EVERY_ADAPTER
def test_every_case_runs_on_some_layout_and_every_layout_runs_most_cases(adapter: type) -> None:
    layouts = adapter().layouts()
    of_all_layouts = [case for case in CORPUS if not case.layouts and case.fewest_samples > 1]
    assert [case.name for case in of_all_layouts if not any(map(case.runs_on, layouts))] == []
    assert min(sum(case.runs_on(layout) for case in CORPUS) for layout in layouts) >= 18


@EVERY_CASE
def test_divisor_cannot_be_taken_for_a_count(case: Case) -> None:
    for step in case.steps:
        counts = {len(step), len(step.mask), int(step.active_tokens.sum())}
        assert case.divisor not in counts


@EVERY_CASE
def test_advantages_at_masked_positions_are_not_zero(case: Case) -> None:
    """As the ratio is 1, neither are losses."""
    assert all(values.all() for values in ProbedBatch(case.steps).advantages)


def case(name: str) -> Case:
    [found] = [one for one in CORPUS if one.name == name]
    return found


def step_of(name: str) -> Step:
    [step] = case(name).steps
    return step


def partition(step: Step, layout: Layout) -> list[list[int]]:
    """The samples of every micro-batch of every rank, as the native adapter cuts them."""
    aggregation = Aggregation(Mode.TOKEN_MEAN)
    job = Job(steps=(step,), aggregation=aggregation, layout=layout, depth=Depth.STEP)
    ranks = [Trainer(job, dp_rank * layout.cp) for dp_rank in range(layout.dp)]
    samples = list(range(step.size))
    return [part for rank in ranks for part in rank.cut(rank.shard(samples))]


@pytest.mark.parametrize(
    ("layout", "partitions"),
    [
        ("dp4-cp1-mb2-thd", [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ("dp2-cp1-mb2-thd", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("dp1-cp1-mbuneven-thd", [[0], [1, 2], [3, 4, 5], [6, 7]]),
    ],
    ids=["per_sample", "per_group", "neither"],
)
def test_layouts_cut_steps_per_sample_per_group_and_otherwise(
    layout: str, partitions: list[list[int]]
) -> None:
    assert Layout.parse(layout) in NativeAdapter().layouts()
    assert partition(step_of("uneven_lengths"), Layout.parse(layout)) == partitions


def test_worked_example_has_the_values_of_miles_pull_request_1328() -> None:
    example, losses = case("worked_example"), np.array([1.0, 2.0, 3.0])
    scalars = {
        mode: math.fsum(token_weights(example.steps[0], example.aggregation(mode)) * losses)
        for mode in Mode
    }

    assert scalars == {
        Mode.SAMPLE_MEAN: 6 / 3,
        Mode.PROMPT_MEAN: 6 / 3,
        Mode.TOKEN_MEAN: 6 / 3,
        Mode.CONSTANT: 6 / 4,
    }
    assert example.steps[0].prompt_lengths + example.steps[0].response_lengths == example.divisor


def test_fibonacci_lengths_are_shared_out_unequally_over_four_ranks() -> None:
    step = step_of("fibonacci_lengths")
    shares = partition(step, Layout(dp=4))

    assert step.active_tokens.tolist() == [1, 2, 3, 5, 8, 13]
    assert step.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert [len(share) for share in shares] == [2, 2, 1, 1]


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


def test_two_steps_have_different_denominators_and_group_ids_that_repeat() -> None:
    first, second = case("two_steps").steps

    assert first.active_tokens.sum() != second.active_tokens.sum()
    assert first.groups.tolist() == second.groups.tolist()


def test_two_prompts_are_torn_apart_by_striping() -> None:
    groups = step_of("two_prompts").groups.tolist()

    assert groups == [0, 0, 1, 1]
    assert [set(groups[rank::2]) for rank in range(2)] == [{0, 1}, {0, 1}]


def test_one_prompt_is_fewer_than_ranks() -> None:
    assert set(step_of("one_prompt").groups.tolist()) == {0}
    assert case("one_prompt").runs_on(Layout(dp=4, micro_batches=2))


def test_interleaved_groups_have_no_adjacent_members() -> None:
    groups = step_of("interleaved_groups").groups

    assert (groups[1:] != groups[:-1]).all()
    assert np.unique(groups, return_counts=True)[1].tolist() == [2, 2, 2, 2]


def test_dropped_rollouts_leave_groups_of_unequal_size() -> None:
    groups = step_of("dropped_rollouts").groups

    assert np.unique(groups, return_counts=True)[1].tolist() == [1, 2, 5]


@pytest.mark.parametrize(
    "layout", ["dp1-cp2-mb2-bshd", "dp2-cp2-mb2-bshd", "dp2-cp2-mbuneven-bshd"]
)
def test_padded_widths_differ_between_and_within_micro_batches(layout: str) -> None:
    step = step_of("padded_widths")
    lengths = step.prompt_lengths + step.response_lengths
    micro_batches = [lengths[part] for part in partition(step, Layout.parse(layout))]

    assert len({part.max() for part in micro_batches}) == len(micro_batches)
    assert any(part.max() > 4 * part.min() for part in micro_batches)


@pytest.mark.parametrize("cp", [2, 4])
def test_masked_stretches_lie_across_chunk_borders_between_active_tokens(cp: int) -> None:
    step = step_of("masked_chunk_borders")
    chunk = 32 // (2 * cp)

    assert set(step.prompt_lengths + step.response_lengths) == {32}
    for prompt, response in zip(step.prompt_lengths, step.responses, strict=True):
        mask = np.concatenate([np.zeros(prompt, np.bool_), step.mask[response]])
        # A token may be held where it lies or where it is predicted, one position before.
        crossed = [b for b in range(chunk, 32, chunk) if not mask[b - 1 : b + 2].any()]
        assert any(mask[:border].any() and mask[border:].any() for border in crossed)


@pytest.mark.parametrize("cp", [2, 4])
def test_empty_cp_ranks_hold_no_response_token_at_all(cp: int) -> None:
    step = step_of("empty_cp_ranks")
    lengths = step.prompt_lengths + step.response_lengths
    chunks = np.arange(32) // (32 // (2 * cp))
    holders = np.minimum(chunks, 2 * cp - 1 - chunks)

    assert set(lengths.tolist()) == {32}
    assert set(holders[step.prompt_lengths.min() - 1 :]) == {0}


@pytest.mark.parametrize("dp", [2, 4])
def test_one_token_leaves_whole_ranks_and_micro_batches_without(dp: int) -> None:
    step = step_of("one_token")
    tokens = [step.active_tokens[part].sum() for part in partition(step, Layout(dp=dp))]

    assert sorted(tokens) == [0] * (dp - 1) + [1]


def test_no_active_token_has_none() -> None:
    assert not step_of("no_active_token").mask.any()


def test_production_step_has_the_shape_of_one() -> None:
    step = step_of("production_step")
    lengths = step.response_lengths

    assert np.unique(step.groups, return_counts=True)[1].tolist() == [8] * 64
    assert lengths.max() == 8192
    assert lengths.mean() > 1.5 * np.median(lengths), "a long tail to the right"
    assert 400_000 < step.active_tokens.sum() < len(step.mask)
    assert (step.active_tokens[lengths == 8192] == 0).all()
    assert case("production_step").divisor == 40_960
