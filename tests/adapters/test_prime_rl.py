"""prime-rl's real trainer, where a clone is given: its inputs and the results."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from adapters.contract import Description, Job
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.prime_rl.adapter import PrimeRLAdapter
from adapters.prime_rl.framework import PRIME_RL
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Trained
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED
from tests.pools import pool_of, trained, trained_alone

pytestmark = steps.marks("prime_rl")

COMMIT = "559b44772e471d1538537b8805cc77f3824a5e64"

CLONE = Path(os.environ.get(command.SOURCES, "")) / "prime_rl"

OTHER_ORCHESTRATORS = ("02bdca2e4", "7f7771388", "07e6bec87", "d1046b876")
"""Commits that compute advantages in three ways: by a function of all rewards (March), by a
function of rollouts (June), and by algorithms (July and August)."""

BY_TOKENS = "dp2-cp1-mbtokens-thd"

weights_error = partial(steps.weights_error, conventions=conventions_of(PRIME_RL.conventions))


pool = pool_of(PrimeRLAdapter, 4, COMMIT)


def description() -> Description:
    """The part of prime-rl's description that judges need: the conventions."""
    return Description(declared=PRIME_RL.conventions)


def job(
    case: str = MASKED.name, layout: str = BY_TOKENS, objective: Objective = Objective.POLICY
) -> Job:
    """A job of `token_mean`, prime-rl's only mode."""
    return steps.job(case, Mode.TOKEN_MEAN, layout, objective)


def test_default_loss_off_policy_has_its_documented_derivative(pool: RankPool) -> None:
    """Its value is -A r + 2 kl_tau log r: probabilities move too little for the mask to act."""
    given = job(objective=Objective.OFF_POLICY)
    outcome = trained(pool, given)

    assert (
        judge_off_policy(Trained(given, outcome.observations, description())).verdict
        is Verdict.MISMATCH
    )
    batch = ProbedBatch(given.steps, given.objective)
    tokens = batch.policy_tokens
    derivative = -tokens.advantages * tokens.ratios + 2e-3 * tokens.log_ratios
    put_in = np.where(batch.dloss_dlogprob == 0, 1.0, batch.dloss_dlogprob)
    for rank in outcome.observations:
        expected = derivative * tokens.mask / tokens.mask.sum()
        assert rank.token_weights[0] * put_in == pytest.approx(expected, rel=1e-5)


def test_copies_that_fill_up_ranks_are_told_from_samples(pool: RankPool) -> None:
    """One of two ranks gets the only sample, and the other a copy in which no token is trained."""
    given = job("worked_example")
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    held = [rank.forward_passes[0] >= 0 for rank in outcome.observations]
    assert sorted(map(any, held)) == [False, True]
    assert [rank.rows[0].tolist() for rank in outcome.observations] == [[1], [1]]
    judged = judge_logged(
        Trained(given, outcome.observations, description()), metric=Metric.POLICY_LOSS
    )
    assert judged.diagnosis.name == "divided_by_dp"


def test_rewards_are_compared_by_the_orchestrators_algorithm(pool: RankPool) -> None:
    """MaxRL divides by the mean of a prompt's rewards, without an epsilon."""
    given = job("equal_rewards", objective=Objective.MEAN_NORMALISED)
    outcome = trained(pool, given)

    judged = judge_advantages(Trained(given, outcome.observations, description()))
    assert judged.verdict is Verdict.CONFORMS


@pytest.mark.usefixtures("other_release")
@pytest.mark.parametrize("commit", OTHER_ORCHESTRATORS)
def test_orchestrators_of_all_versions_compare_the_rewards_of_rollouts(commit: str) -> None:
    """Some rollouts have several samples, which count once in the mean of their prompt."""
    given = job("several_samples", "dp1-cp1-mbtokens-thd", Objective.GROUP_CENTRED)
    adapter = PrimeRLAdapter()
    outcome = trained_alone(adapter, given, commit)

    judged = judge_advantages(Trained(given, outcome.observations, description()))
    assert judged.verdict is Verdict.CONFORMS


def test_micro_batches_are_cut_by_tokens(pool: RankPool) -> None:
    outcome = pool.run(job(layout="dp2-cp1-mb2-thd"))

    assert isinstance(outcome, Declined)
    assert "cut by tokens" in outcome.message
