"""Advantages that a trainer computes wrongly are traced from a reward to the line."""

import linecache
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest

from adapters.contract import Layout
from adapters.contract.batch.altered import SHADE, painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Column, Configuration, Paint
from adapters.contract.objective import Objective
from conformance.findings.trace import Contents
from conformance.ranks.pool import RankPool
from conformance.tracing.finding import traced_job
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.suspects.numbers import digits_lost
from conformance.tracing.trace import Trace
from conformance.tracing.traced import Token, TracedJob
from conformance.views.traces import as_text
from reference.step import Step
from tests.jobs import job_of, step_of
from tests.tracing.rewarded import MiscountingAdapter, RewardedAdapter

TWO_GROUPS = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1], groups=[0, 0, 1, 1])
MASKED_END = step_of([1, 1, 1], [1, 1, 0])


class Traced(Protocol):
    """A function that traces an advantage of a step trained in one of the toy's ways."""

    def __call__(
        self, way: str, step: Step, objective: Objective = ..., token: Token | None = None
    ) -> TracedAdvantage: ...


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with RankPool(RewardedAdapter(), None, 2) as pool:

        def run(
            way: str,
            step: Step,
            objective: Objective = Objective.GROUP_CENTRED,
            token: Token | None = None,
        ) -> TracedAdvantage:
            configuration = Configuration(divisor=way)
            fields = {"layout": Layout(dp=2), "objective": objective}
            found = traced_job(job_of(step, configuration=configuration, **fields), pool, token)
            assert isinstance(found, TracedAdvantage), found
            return found

        yield run


def of(job: TracedAdvantage) -> Trace:
    return Trace.of("advantages.group_centred", job, None, None)


@pytest.mark.parametrize(
    ("way", "step", "text"),
    [
        ("merged", TWO_GROUPS, "mean = rewards.mean()"),
        ("listed", TWO_GROUPS, "(rewards - rewards.mean()).tolist()"),
        ("lost", MASKED_END, 'placed * rows["mask"]'),
    ],
)
def test_the_line_is_the_first_suspect(traced: Traced, way: str, step: Step, text: str) -> None:
    line = of(traced(way, step)).suspects[0].line

    assert text in linecache.getline(line.file, line.number)


def test_whitening_on_each_rank_is_suspected_where_ranks_are_left_out(traced: Traced) -> None:
    suspects = of(traced("of_a_rank", TWO_GROUPS, Objective.GROUP_WHITENED)).suspects

    lines = [linecache.getline(one.line.file, one.line.number) for one in suspects]
    assert [one.why for one in suspects[:2]] == ["reduces over 1 of 2 ranks"] * 2
    assert "dist.new_group([rank])" in lines[0]
    assert "dist.all_reduce(sums" in lines[1]


@pytest.mark.parametrize(
    ("way", "objective"),
    [("right", Objective.GROUP_CENTRED), ("whitened", Objective.GROUP_WHITENED)],
)
def test_a_right_advantage_has_no_suspects(traced: Traced, way: str, objective: Objective) -> None:
    job = traced(way, TWO_GROUPS, objective)

    assert not job.is_wrong
    assert of(job).suspects == []


def test_the_reward_of_one_sample_is_all_that_there_is(traced: Traced) -> None:
    """In a group of two, half of a reward of 2.578125 is left: r - r/2; in one of four, 3/4."""
    job = traced("merged", TWO_GROUPS, token=Token(0, 1))

    assert job.job.painted is not None
    assert job.job.painted.column is Column.REWARDS
    assert (job.expected, job.observed) == (2.578125 / 2, pytest.approx(2.578125 * 3 / 4))
    assert as_text(of(job))[0] == (
        "advantages.group_centred: token 0:1 has an advantage of 1.93359 and should have 1.28906,"
        " where only sample 0 has a reward, of 2.578125"
    )


def test_digits_that_only_rewards_of_several_samples_lose_are_found(traced: Traced) -> None:
    """The variance of two rewards near 3000 is computed as a difference of numbers near 9e6."""
    job = traced("by_squares", TWO_GROUPS, Objective.GROUP_NORMALISED)
    trace = of(job)

    line = trace.suspects[0].line
    assert job.is_wrong
    assert "torch.stack(squares) - torch.stack(means) ** 2" in linecache.getline(
        line.file, line.number
    )
    assert "where all samples have their rewards" in as_text(trace)[0]


def test_a_single_divergence_may_be_the_only_input_of_advantages() -> None:
    job = job_of(TWO_GROUPS, objective=Objective.REINFORCE_PP)

    with painting(Paint(1, 2, Column.REFERENCE_LOG_PROBS)):
        batch = ProbedBatch.of(job)

    divergences = np.concatenate(batch.log_probs) - np.concatenate(batch.reference_log_probs)
    assert np.flatnonzero(divergences).tolist() == [5]
    assert divergences[5] == SHADE
    assert not batch.rewards.any()


@pytest.mark.parametrize(("largest", "count"), [(1e8, 1), (math.inf, 0), (10.0, 0)])
def test_only_large_numbers_lose_digits_and_a_bound_of_infinity_is_none(
    largest: float, count: int
) -> None:
    line = SimpleNamespace(file="/toy/loss.py", number=7)
    held = Contents(1, (largest,), largest, largest, 1, is_measured=True)
    left = Contents(1, (0.0,), 0.0, 0.0, 0, is_measured=True)
    computed = {"stack": [line], "requires_grad": False}
    by_node = {
        0: SimpleNamespace(name="aten.mul.Tensor", contents=held, **computed),
        1: SimpleNamespace(name="aten.sub.Tensor", contents=left, **computed),
    }
    graph: Any = SimpleNamespace(
        nodes=lambda: [*by_node], operation=by_node.get, inputs=lambda node: [0] if node else []
    )

    assert len(digits_lost(graph, None, "toy")) == count  # type: ignore[arg-type]


def test_advantages_that_are_wrong_by_the_weight_of_tokens_are_traced_to_its_divisor() -> None:
    """The trainer divides by 12 tokens instead of the 10 active ones."""
    layout, objective = Layout(dp=2), Objective.GROUP_CENTRED
    with RankPool(MiscountingAdapter(), None, 2) as pool:
        job = traced_job(job_of(TWO_GROUPS, layout=layout, objective=objective), pool)

    assert isinstance(job, TracedJob)
    line = Trace.of("advantages.group_centred", job, None, None).suspects[0].line
    assert (job.expected, job.observed) == (1 / 10, pytest.approx(1 / 12))
    assert "torch.ones_like(mask).sum()" in linecache.getline(line.file, line.number)
