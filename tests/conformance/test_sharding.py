"""Which rank trained on what: samples of two groups on two ranks."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.contract import Depth, Description, Job, Layout, Observation
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, judge_sharding
from reference.aggregation import Aggregation, Conventions, Mode
from reference.step import Sample, Step
from tests.declaring import assumed

STEP = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1, 0], group=7),
        Sample(prompt_length=1, loss_mask=[1], group=7),
        Sample(prompt_length=1, loss_mask=[1], group=9),
    ]
)

WHOLE = Conventions(whole_groups=True)


def judged(
    *passes: list[int],
    mode: Mode = Mode.PROMPT_MEAN,
    conventions: Conventions = WHOLE,
    layout: Layout = Layout(dp=2),  # noqa: B008 - frozen
) -> Judgement | None:
    """By the forward pass in which each rank held the four tokens, -1 where in none."""
    job = Job(steps=(STEP,), aggregation=Aggregation(mode), layout=layout, depth=Depth.STEP)
    observations = [
        Observation(token_weights=(), forward_passes=(np.array(held, np.int32),)) for held in passes
    ]
    return judge_sharding(job, observations, Description(declared=assumed(conventions)))


def diagnosis(judgement: Judgement | None) -> tuple[str, dict[str, float]]:
    assert judgement is not None
    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis is not None
    return judgement.diagnosis.name, judgement.diagnosis.numbers


def test_whole_groups_conform() -> None:
    judgement = judged([0, 0, 1, -1], [-1, -1, -1, 0])

    assert judgement is not None
    assert judgement.verdict is Verdict.CONFORMS


def test_group_on_two_ranks_is_named_where_it_must_be_whole() -> None:
    striped = [0, 0, -1, 1], [-1, -1, 0, -1]

    assert diagnosis(judged(*striped)) == ("group_on_several_ranks", {"group": 7, "ranks": 2})
    for allowed in (
        judged(*striped, conventions=Conventions()),
        judged(*striped, mode=Mode.SAMPLE_MEAN),
    ):
        assert allowed is not None
        assert allowed.verdict is Verdict.CONFORMS


def test_slices_of_a_sample_are_on_one_data_parallel_rank() -> None:
    sliced = judged(
        [0, -1, 0, -1], [-1, 0, -1, -1], [-1, -1, -1, 0], [-1] * 4, layout=Layout(dp=2, cp=2)
    )

    assert sliced is not None
    assert sliced.verdict is Verdict.CONFORMS


def test_active_token_on_no_rank_is_named_and_an_inactive_one_may_be() -> None:
    lost = judged([0, 0, -1, -1], [-1, -1, -1, 0])
    inactive = judged([0, -1, 0, -1], [-1, -1, -1, 0])

    assert diagnosis(lost) == ("tokens_not_held", {"lost": 1, "tokens": 3})
    assert inactive is not None
    assert inactive.verdict is Verdict.CONFORMS


def test_ranks_that_record_nothing_are_their_adapter_s_fault() -> None:
    job = Job(
        steps=(STEP,),
        aggregation=Aggregation(Mode.PROMPT_MEAN),
        layout=Layout(),
        depth=Depth.STEP,
    )

    name, _ = diagnosis(judge_sharding(job, [Observation(token_weights=())], Description()))

    assert name == "forward_passes_not_recorded"


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_loses_tokens_alike(mode: Mode) -> None:
    aggregation = Aggregation(mode, 40 if mode is Mode.CONSTANT else None)
    job = Job(steps=(STEP,), aggregation=aggregation, layout=Layout(), depth=Depth.STEP)
    held = (np.array([-1, 0, 0, 0], np.int32),)

    assert diagnosis(
        judge_sharding(job, [Observation(token_weights=(), forward_passes=held)], Description())
    ) == ("tokens_not_held", {"lost": 1, "tokens": 3})
