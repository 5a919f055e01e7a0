"""Logged numbers of a batch of rollouts: means over all its steps, by hand."""

import math

import numpy as np
import pytest

from adapters.contract import Depth, Description, Job, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import OF_ROLLOUTS, Metric, Objective
from conformance.expected.advantages import BatchPlacement, Estimate
from conformance.expected.estimators import ESTIMATORS, estimator_conventions, rollouts_of
from conformance.explain.catalogue.advantages import wrong_advantages
from conformance.findings.verdict import Verdict
from conformance.judging.metrics import judge_logged_of_rollouts
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import LOGGED_OF_ROLLOUTS
from reference.aggregation import Aggregation, Conventions, LoggedMean, Mode, SampleUnit, TokenSet
from reference.step import Sample, Step
from tests.declaring import assumed

STEPS = (
    Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1, 1], group=0, rollout=0),
            Sample(prompt_length=1, loss_mask=[1, 0], group=0, rollout=0),
        ]
    ),
    Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1], group=0, rollout=0),
            Sample(prompt_length=1, loss_mask=[0, 0], group=0, rollout=1),
        ]
    ),
)
"""Four samples of three rollouts, whose rewards are 1, -1/2 and 9/4. The response tokens have ids 2
and 3; 5 and 6; 8; 10 and 11, and values 3/2 and 1/4; 1/2 and -1; 1/4; 1/2 and -1. The means of
active tokens' values are 7/8, 1/2, 1/4 and, in the last sample, 0."""

RIGHT = {
    Metric.REWARD: (1 + 1 - 1 / 2 + 9 / 4) / 4,
    Metric.RESPONSE_LENGTH: 7 / 4,
    Metric.VALUE: (7 / 8 + 1 / 2 + 1 / 4) / 4,
    Metric.REFERENCE_LOG_PROB: -((1 / 2 + 2) / 2 + 1 / 8 + 1 / 2) / 4,
    Metric.DIVERGENCE: ((1 / 2 + 2) / 2 + 1 / 8 + 1 / 2) / 4,
}

LAYOUT = Layout(dp=2)
PASSES = (
    (np.array([0, 0, -1, -1]), np.array([0, -1, -1])),
    (np.array([-1, -1, 0, 0]), np.array([-1, 0, 0])),
)
"""The passes of two ranks, each with one sample of each step."""


def judged(
    metric: Metric,
    *of_ranks: float | None,
    conventions: Conventions | None = None,
    objective: Objective = Objective.GAE,
) -> Judgement:
    job = Job(
        steps=STEPS,
        aggregation=Aggregation(Mode.SAMPLE_MEAN),
        layout=LAYOUT,
        depth=Depth.STEP,
        objective=objective,
    )
    observations = [
        Observation(
            token_weights=(),
            reported={} if value is None else {metric: (value,)},
            forward_passes=passes,  # type: ignore[arg-type]
        )
        for value, passes in zip(of_ranks, PASSES, strict=True)
    ]
    description = Description(declared=assumed(conventions or Conventions()))
    return judge_logged_of_rollouts(Trained(job, observations, description), metric=metric)


def named(judgement: Judgement) -> list[str]:
    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis is not None
    return [judgement.diagnosis.name, *judgement.diagnosis.also]


@pytest.mark.parametrize(("metric", "number"), RIGHT.items())
def test_mean_over_all_steps_conforms_on_whatever_rank_logs_it(
    metric: Metric, number: float
) -> None:
    assert judged(metric, None, number).verdict is Verdict.CONFORMS
    assert judged(metric, number, 1.01 * number).verdict is Verdict.MISMATCH


def test_number_that_no_rank_logs_is_missed() -> None:
    assert named(judged(Metric.VALUE, None, None)) == ["not_logged"]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("weights_of_token_mean", (3 / 2 + 1 / 4 + 1 / 2 + 1 / 4) / 4),
        ("sample_units_excluded", (7 / 8 + 1 / 2 + 1 / 4) / 3),
        ("inactive_tokens_weigh", (7 / 8 - 1 / 4 + 1 / 4 - 1 / 4) / 4),
        ("not_reduced_over_ranks", (7 / 8 + 1 / 4) / 4),
        ("nothing_reported", 0.0),
    ],
)
def test_mistakes_in_the_mean_of_values_are_named(name: str, number: float) -> None:
    assert name in named(judged(Metric.VALUE, number, None))


def test_rollouts_count_once_where_they_are_the_units_of_means() -> None:
    """Values of tokens are averaged over rollouts, but numbers of samples over samples."""
    by_rollout = Conventions(sample_unit=SampleUnit.ROLLOUT)
    first = (3 / 2 + 1 / 4 + 1 / 2) / 3

    assert judged(Metric.VALUE, (first + 1 / 4) / 3, None, conventions=by_rollout).error == (
        pytest.approx(0, abs=1e-12)
    )
    length = RIGHT[Metric.RESPONSE_LENGTH]
    assert judged(
        Metric.RESPONSE_LENGTH, length, None, conventions=by_rollout
    ).error == pytest.approx(0)


GAE = Estimate(
    objective=Objective.GAE,
    rollouts=rollouts_of(ProbedBatch(STEPS, Objective.GAE)),
    conventions=estimator_conventions(Objective.GAE, Conventions()),
)


def test_logged_advantages_are_those_of_the_declared_tokens() -> None:
    values = GAE.advantages
    of_samples = math.fsum([values[:2].mean(), values[2], values[4]]) / 4
    of_all = LoggedMean(mode=Mode.TOKEN_MEAN, tokens=TokenSet.RESPONSE)

    assert judged(Metric.ADVANTAGE, of_samples, None).verdict is Verdict.CONFORMS
    assert (
        judged(
            Metric.ADVANTAGE,
            float(values.mean()),
            None,
            conventions=Conventions(logged_advantages=of_all),
        ).verdict
        is Verdict.CONFORMS
    )


def test_logged_values_are_those_of_the_declared_mean() -> None:
    of_tokens = (3 / 2 + 1 / 4 + 1 / 2 + 1 / 4) / 4
    by_token = Conventions(logged_values=LoggedMean(mode=Mode.TOKEN_MEAN))

    assert judged(Metric.VALUE, of_tokens, None, conventions=by_token).error == pytest.approx(0)
    assert judged(Metric.VALUE, of_tokens, None).verdict is Verdict.MISMATCH


def test_mean_of_wrong_advantages_is_named_after_what_is_wrong_with_them() -> None:
    placement = BatchPlacement(
        step=np.repeat([0, 1], [4, 3]),
        dp_rank=np.array([0, 0, 1, 1, 0, 1, 1]),
        cp_rank=np.zeros(7, np.int64),
    )
    mask = GAE.rollouts.mask
    right = GAE.advantages[mask]
    for name, wrong in wrong_advantages(GAE, placement):
        number = math.fsum([wrong[:2].mean(), wrong[2], wrong[4]]) / 4
        if not np.allclose(wrong[mask], right, rtol=1e-3, atol=1e-3):
            assert name in named(judged(Metric.ADVANTAGE, number, None)), name


def test_every_number_of_rollouts_is_looked_at_with_an_estimator() -> None:
    logged = [metric for metrics in LOGGED_OF_ROLLOUTS.values() for metric in metrics]

    assert set(logged) == {*OF_ROLLOUTS}
    assert LOGGED_OF_ROLLOUTS.keys() <= ESTIMATORS.keys()
