"""TRL's real `RLOOTrainer`, from PyPI: its inputs and the results."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Description, Job, Layout, Option
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import ENTROPIES
from adapters.contract.description import conventions_of
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.trl.engines import TrlRlooAdapter
from adapters.trl.framework import RLOO
from conformance.expected.estimators import rollouts_of
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Trained
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step
from tests.adapters import steps
from tests.jobs import job_of
from tests.pools import pool_of, trained, trained_alone

pytestmark = steps.marks("trl")

ADDED_UP = Aggregation(Mode.CONSTANT, 1.0)
PLAIN, ONE_RANK = "dp2-cp1-mb2-bshd", "dp1-cp1-mb2-bshd"
SPLIT = f"{PLAIN}+{Option.SPLIT_GENERATION}"


pool = pool_of(TrlRlooAdapter, 2)


class OtherSettings(TrlRlooAdapter):
    """Trains every job with settings that belong to no objective."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def settings(self, job: Job) -> dict[str, object]:
        return super().settings(job) | self._settings


def step(*lengths: int, truncated: Sequence[int] = ()) -> Step:
    """A step of completions in pairs of one prompt; those at ``truncated`` are masked whole."""
    return Step.of(
        [
            Sample(
                prompt_length=2 + index % 3,
                loss_mask=[index not in truncated] * length,
                group=index // 2,
            )
            for index, length in enumerate(lengths)
        ]
    )


UNEVEN = step(1, 2, 3, 5, 8, 13, 4, 7)


def job(*of_steps: Step, layout: str = PLAIN, objective: Objective = Objective.POLICY) -> Job:
    """A job in which the token losses of a sample are summed."""
    return job_of(
        *(of_steps or (UNEVEN,)),
        aggregation=ADDED_UP,
        layout=Layout.parse(layout),
        objective=objective,
    )


def description() -> Description:
    """The part of the trainer's description that judges need: the conventions."""
    return Description(declared=RLOO.conventions)


def batch_of(given: Job) -> ProbedBatch:
    """The batch that the trainer is given."""
    return ProbedBatch.make(conventions_of(RLOO.conventions), given.steps, given.objective)


def of_samples(given: Job, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value of each sample's last token; all tokens of a sample have the same value."""
    [only] = given.steps
    ends = np.cumsum(only.response_lengths)
    assert all(np.ptp(one) == 0 for one in np.split(values, ends[:-1]))
    return values[ends - 1]


def test_ratios_are_those_of_sequences_and_clipped(pool: RankPool) -> None:
    given = job(objective=Objective.OFF_POLICY)
    outcome = trained(pool, given)

    batch = batch_of(given)
    tokens = batch.policy_tokens
    ratios = np.exp(tokens.summed(tokens.log_ratios))
    too_large = (ratios > 1 + CONSTANTS.clip_high) & (tokens.advantages > 0)
    too_small = (ratios < 1 - CONSTANTS.clip_low) & (tokens.advantages < 0)
    expected = np.where(too_large | too_small, 0.0, -tokens.advantages * ratios) / 8
    assert 0 < np.count_nonzero(of_samples(given, expected)) < 8
    derivatives = np.where(batch.dloss_dlogprob == 0, 1.0, batch.dloss_dlogprob)
    for rank in outcome.observations:
        [weights] = rank.token_weights
        assert weights * derivatives == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layout", [PLAIN, ONE_RANK])
def test_advantages_leave_one_out(pool: RankPool, layout: str) -> None:
    given = replace(
        steps.job("odd_groups", layout=layout, objective=Objective.LEAVE_ONE_OUT),
        aggregation=ADDED_UP,
    )
    outcome = trained(pool, given)

    judged = judge_advantages(Trained(given, outcome.observations, description()))
    assert judged.verdict is Verdict.CONFORMS
    for rank in outcome.observations:
        assert rank.reported[Metric.REWARD] == pytest.approx((batch_of(given).rewards.mean(),))


def test_divergence_of_a_sample_is_subtracted_from_its_reward() -> None:
    given = job(objective=Objective.LEAVE_ONE_OUT)
    outcome = trained_alone(OtherSettings(beta=KL_COEFFICIENT), given)

    rollouts = rollouts_of(batch_of(given))
    divergences = np.bincount(rollouts.sample, weights=rollouts.divergences)
    rewards = (rollouts.rewards - KL_COEFFICIENT * divergences).reshape(-1, 2)
    expected = (rewards - rewards[:, ::-1]).ravel()
    for rank in outcome.observations:
        [weights] = rank.token_weights
        assert of_samples(given, weights * 8) == pytest.approx(expected, rel=1e-5)
        assert rank.reported[Metric.DIVERGENCE] == pytest.approx((rollouts.divergences.mean(),))


def test_advantages_are_normalised_over_a_generation() -> None:
    given = job(objective=Objective.LEAVE_ONE_OUT)
    outcome = trained_alone(OtherSettings(normalize_advantages=True), given)

    rewards = batch_of(given).rewards.reshape(-1, 2)
    advantages = (rewards - rewards[:, ::-1]).ravel()
    expected = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-4)
    for rank in outcome.observations:
        [weights] = rank.token_weights
        assert of_samples(given, weights * 8) == pytest.approx(expected, rel=1e-5)


def test_logged_entropy_is_a_mean_of_micro_batches(pool: RankPool) -> None:
    """Micro-batches of 11 and 32 tokens, on all ranks, have the same weight in the mean."""
    given = job(layout=SPLIT)
    outcome = trained(pool, given)

    responses = batch_of(given).responses
    halves = [np.concatenate(responses[half]) for half in (slice(0, 4), slice(4, 8))]
    assert [len(ids) for ids in halves] == [11, 32]
    means = [ENTROPIES[ids % len(ENTROPIES)].mean() for ids in halves]
    for rank in outcome.observations:
        assert rank.reported[Metric.ENTROPY] == pytest.approx((np.mean(means),))
    judged = judge_logged(
        Trained(given, outcome.observations, description()), metric=Metric.ENTROPY
    )
    assert judged.diagnosis.name == "denominators_per_micro_batch_of_all_ranks"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (steps.job(mode=Mode.CONSTANT, layout=PLAIN), "no constant:"),
        (replace(steps.job(layout=PLAIN), aggregation=ADDED_UP), "no token mask"),
        (job(step(1, 2, 3, 5, truncated=(3,))), "only truncated samples"),
    ],
    ids=["another divisor", "a mask with holes", "a sample that is masked"],
)
def test_what_the_trainer_has_not_is_no_configuration_of_a_user(
    pool: RankPool, given: Job, reason: str
) -> None:
    outcome = pool.run(given)

    assert isinstance(outcome, Declined)
    assert reason in outcome.message
