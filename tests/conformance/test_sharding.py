"""The check `sharding`, on a step of two prompt groups on two ranks."""

import numpy as np
import pytest

from adapters.contract import Description, Layout, Observation
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, Trained, judge_sharding
from reference.aggregation import Aggregation, Conventions, Mode
from tests.declaring import assumed
from tests.jobs import job_of, step_of

STEP = step_of([1, 0], [1], [1], groups=[7, 7, 9])

WHOLE = Conventions(whole_groups=True)


def judged(
    *passes: list[int],
    mode: Mode = Mode.PROMPT_MEAN,
    conventions: Conventions = WHOLE,
    layout: Layout = Layout(dp=2),  # noqa: B008 - frozen
) -> Judgement | None:
    """The judgement, given the pass in which each rank held each of four tokens; -1 for none."""
    job = job_of(STEP, mode=mode, layout=layout)
    observations = [
        Observation(token_weights=(), forward_passes=(np.array(held, np.int32),)) for held in passes
    ]
    return judge_sharding(Trained(job, observations, Description(declared=assumed(conventions))))


def diagnosis(judgement: Judgement | None) -> tuple[str, dict[str, float]]:
    assert judgement.verdict is Verdict.MISMATCH
    return judgement.diagnosis.name, judgement.diagnosis.numbers


def test_whole_groups_conform() -> None:
    judgement = judged([0, 0, 1, -1], [-1, -1, -1, 0])

    assert judgement.verdict is Verdict.CONFORMS


def test_group_on_two_ranks_is_named_where_it_must_be_whole() -> None:
    striped = [0, 0, -1, 1], [-1, -1, 0, -1]

    assert diagnosis(judged(*striped)) == ("group_on_several_ranks", {"group": 7, "ranks": 2})
    for allowed in (
        judged(*striped, conventions=Conventions()),
        judged(*striped, mode=Mode.SAMPLE_MEAN),
    ):
        assert allowed.verdict is Verdict.CONFORMS


def test_slices_of_a_sample_are_on_one_data_parallel_rank() -> None:
    sliced = judged(
        [0, -1, 0, -1], [-1, 0, -1, -1], [-1, -1, -1, 0], [-1] * 4, layout=Layout(dp=2, cp=2)
    )

    assert sliced.verdict is Verdict.CONFORMS


def test_active_token_on_no_rank_is_named_and_an_inactive_one_may_be() -> None:
    lost = judged([0, 0, -1, -1], [-1, -1, -1, 0])
    inactive = judged([0, -1, 0, -1], [-1, -1, -1, 0])

    assert diagnosis(lost) == ("tokens_not_held", {"lost": 1, "tokens": 3})
    assert inactive.verdict is Verdict.CONFORMS


def test_ranks_that_record_nothing_are_their_adapter_s_fault() -> None:
    job = job_of(STEP, mode=Mode.PROMPT_MEAN)

    name, _ = diagnosis(
        judge_sharding(Trained(job, [Observation(token_weights=())], Description()))
    )

    assert name == "forward_passes_not_recorded"


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_loses_tokens_alike(mode: Mode) -> None:
    aggregation = Aggregation(mode, 40 if mode is Mode.CONSTANT else None)
    job = job_of(STEP, aggregation=aggregation)
    held = (np.array([-1, 0, 0, 0], np.int32),)

    assert diagnosis(
        judge_sharding(
            Trained(job, [Observation(token_weights=(), forward_passes=held)], Description())
        )
    ) == ("tokens_not_held", {"lost": 1, "tokens": 3})
