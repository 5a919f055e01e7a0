"""The cases of the corpus have the properties that they name."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Layout
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.native.adapter import NativeAdapter
from adapters.native.trainer import Trainer
from conformance.corpus.cases import CORPUS, Case
from conformance.findings.verdict import Check
from conformance.plan.plan import Plan
from conformance.runs import registry
from reference.aggregation import Aggregation, Mode
from reference.step import Step
from reference.weights import sample_weights, token_weights
from tests.jobs import job_of

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


def test_steps_of_few_samples_are_run_where_a_framework_fills_up() -> None:
    """prime-rl fills up eight micro-batches of four ranks with copies that it does not train."""
    plan = Plan(layouts=(Layout.parse("dp4-cp1-mbtokens-thd"),), checks=frozenset({Check.WEIGHTS}))
    few = {*replace(plan, fills_up=True).cells()} - {*plan.cells()}

    assert {cell.id.split("/")[2] for cell in few} == {
        "fibonacci_lengths",
        "two_prompts",
        "worked_example",
    }


@EVERY_CASE
def test_divisor_cannot_be_taken_for_a_count(case: Case) -> None:
    for step in case.steps:
        counts = {len(step), len(step.mask), int(step.active_tokens.sum())}
        assert case.divisor not in counts


@EVERY_CASE
def test_advantages_at_masked_positions_are_not_zero(case: Case) -> None:
    """As ratios are 1, losses at masked positions are then not zero either."""
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
    job = job_of(step, aggregation=aggregation, layout=layout)
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


def sizes(step: Step) -> list[int]:
    """The number of samples of each prompt group."""
    return list(np.unique(step.groups, return_counts=True)[1].tolist())


def shards(step: Step, dp: int) -> list[list[int]]:
    return partition(step, Layout(dp=dp))


def tokens_of_shards(step: Step, dp: int) -> list[int]:
    """The number of active tokens on each data-parallel rank if shards have equal sizes."""
    return list(step.active_tokens.reshape(dp, -1).sum(axis=1).tolist())


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("fibonacci_lengths", lambda step: step.active_tokens.tolist(), [1, 2, 3, 5, 8, 13]),
        ("fibonacci_lengths", lambda step: step.groups.tolist(), [0, 0, 1, 1, 2, 2]),
        ("fibonacci_lengths", lambda step: [*map(len, shards(step, 4))], [2, 2, 1, 1]),
        ("fully_masked_sample", lambda step: (step.active_tokens == 0).sum(), 1),
        ("fully_masked_group", lambda step: [*step.groups[step.active_tokens == 0]], [1, 1]),
        ("one_token", lambda step: step.active_tokens.sum(), 1),
        ("no_active_token", lambda step: step.mask.any(), False),
        (
            "long_prompts",
            lambda step: (3 * step.prompt_lengths > step.response_lengths).all(),
            True,
        ),
        ("short_responses", lambda step: (step.response_lengths < 2 * 2).all(), True),
        ("unequal_groups", lambda step: len(set(sizes(step))) > 1, True),
        ("two_prompts", lambda step: step.groups.tolist(), [0, 0, 1, 1]),
        ("one_prompt", lambda step: set(step.groups.tolist()), {0}),
        ("one_prompt", lambda step: step.size >= 4 * 2, True),
        ("interleaved_groups", lambda step: np.diff(step.groups).all(), True),
        ("interleaved_groups", sizes, [2, 2, 2, 2]),
        ("dropped_rollouts", sizes, [1, 2, 5]),
        ("production_step", sizes, [8] * 64),
        *(
            ("unequal_shards", lambda step, dp=dp: _ratio(tokens_of_shards(step, dp)) > 2, True)
            for dp in (2, 4)
        ),
        *(
            ("split_groups", lambda step, cuts=cuts: _splits(step, cuts), True)
            for cuts in (2, 4, 8)
        ),
    ],
)
def test_cases_have_what_they_are_named_after(
    name: str, found: Callable[[Step], object], expected: object
) -> None:
    assert found(step_of(name)) == expected


def _ratio(numbers: list[int]) -> float:
    return max(numbers) / min(numbers)


def _splits(step: Step, cuts: int) -> bool:
    """Whether some group lies on both sides of a cut."""
    size = len(step) // cuts
    borders = range(size, len(step), size)
    return any(step.groups[border - 1] == step.groups[border] for border in borders)


def test_uneven_lengths_tell_all_modes_apart() -> None:
    [step] = case("uneven_lengths").steps
    weights = {
        tuple(sample_weights(step, Aggregation(mode, 40 if mode is Mode.CONSTANT else None)))
        for mode in Mode
    }

    assert len(weights) == len(Mode)


def test_two_steps_have_different_denominators_and_group_ids_that_repeat() -> None:
    first, second = case("two_steps").steps

    assert first.active_tokens.sum() != second.active_tokens.sum()
    assert first.groups.tolist() == second.groups.tolist()


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
        # A rank may hold a token by its own position, or by the one before, which predicts it.
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


def test_production_step_has_the_shape_of_one() -> None:
    step = step_of("production_step")
    lengths = step.response_lengths

    assert lengths.max() == 8192
    assert lengths.mean() > 1.5 * np.median(lengths), "a long tail to the right"
    assert 400_000 < step.active_tokens.sum() < len(step.mask)
    assert (step.active_tokens[lengths == 8192] == 0).all()
    assert case("production_step").divisor == 40_960
