"""The picture of wrong weights shows the observed ones, rounded as documented."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract import Layout
from conformance.findings.finding import Picture, Run
from conformance.findings.verdict import Verdict
from conformance.judging.picture import MOST_RUNS, MOST_SAMPLES, picture
from reference.aggregation import Mode
from reference.step import Sample, Step
from tests.conformance.given import SLICED, STEP, Given

SAMPLE_MEAN = Given(mode=Mode.SAMPLE_MEAN)


def drawn(given: Given, observed: np.ndarray) -> Picture:
    return picture(given.context, observed, given.weights)


def test_neighbours_of_one_weight_in_one_place_are_one_run() -> None:
    placement = Given(
        mode=Mode.SAMPLE_MEAN, forward_pass_of_token=SLICED, layout=Layout(dp=2, cp=2, format="thd")
    )
    first, *_, last = drawn(placement, 2 * placement.weights).samples

    assert first.runs == [
        Run(1, 0.1, 0.2, dp_rank=0, cp_rank=0, micro_batch=0),
        Run(1, 0.1, 0.2, dp_rank=0, cp_rank=1, micro_batch=0),
        Run(1, 0.0, 0.0, dp_rank=0, cp_rank=0, micro_batch=0),
    ]
    assert last.runs == [
        Run(1, 0.0666667, 0.133333, dp_rank=1, cp_rank=0, micro_batch=1),
        Run(2, 0.0666667, 0.133333, dp_rank=1, cp_rank=1, micro_batch=1),
    ]


def test_where_the_cut_is_not_known_no_place_is_named() -> None:
    [run] = drawn(SAMPLE_MEAN, SAMPLE_MEAN.weights).samples[1].runs

    assert run == Run(1, 0.2, 0.2, dp_rank=None, cp_rank=None, micro_batch=None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=14, max_size=14))
def test_weights_can_be_read_off_it(weights: list[float]) -> None:
    shown = drawn(SAMPLE_MEAN, np.array(weights))

    assert [sample.sample for sample in shown.samples] == [*range(STEP.size)]
    assert [sample.group for sample in shown.samples] == STEP.groups.tolist()
    read = [run.observed for s in shown.samples for run in s.runs for _ in range(run.tokens)]
    assert read == pytest.approx(weights, rel=1e-5, abs=1e-300)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_shown_as_none(weight: float) -> None:
    shown = drawn(SAMPLE_MEAN, np.full(14, weight))

    assert [len(sample.runs) for sample in shown.samples] == [2, 1, 1, 2, 1]
    assert {run.observed for sample in shown.samples for run in sample.runs} == {None}


def test_zero_has_no_sign() -> None:
    shown = drawn(SAMPLE_MEAN, -0.0 * SAMPLE_MEAN.weights)

    assert "-0.0" not in shown.model_dump_json()


def test_of_many_samples_the_worst_are_shown_and_of_many_runs_the_first() -> None:
    samples = [Sample(prompt_length=1, loss_mask=[1] * 100, group=i) for i in range(100)]
    given = Given(mode=Mode.SAMPLE_MEAN, steps=(Step.of(samples),))
    observed = given.weights.copy()
    observed[9000:] *= np.linspace(2, 3, 1000)

    shown = drawn(given, observed)

    assert shown.samples_of_step == 100
    assert len(shown.samples) == MOST_SAMPLES
    assert [sample.sample for sample in shown.samples[-10:]] == [*range(90, 100)]
    assert shown.samples[0].runs == [Run(100, 0.0001, 0.0001, None, None, None)]
    assert [len(sample.runs) for sample in shown.samples[-10:]] == [MOST_RUNS] * 10
    assert sum(run.tokens for run in shown.samples[-1].runs) < shown.samples[-1].tokens == 100


def test_a_finding_of_wrong_weights_has_one_and_another_has_none() -> None:
    wrong = SAMPLE_MEAN.judged(2 * SAMPLE_MEAN.weights)

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.picture == drawn(SAMPLE_MEAN, 2 * SAMPLE_MEAN.weights)
    assert SAMPLE_MEAN.judged(SAMPLE_MEAN.weights).picture is None
