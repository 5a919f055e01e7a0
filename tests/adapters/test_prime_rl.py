"""prime-rl's real trainer, where a clone is given: what it is sent, and what is read off it."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Description, Job
from adapters.contract.description import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.prime_rl.adapter import PrimeRLAdapter
from adapters.prime_rl.framework import PRIME_RL
from adapters.toolkit.source import resolve
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_off_policy
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import step_context
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.prime_rl,
    pytest.mark.skipif(
        command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
    ),
    pytest.mark.skipif(
        find_spec("pydantic_config") is None, reason="the extra prime_rl is not installed"
    ),
]

COMMIT = "559b44772e471d1538537b8805cc77f3824a5e64"
OLDER = "1d9ca92551163dfb643ae164642dc84b7e1b5553"
"""The commit of May 2026 that counts the tokens of all ranks; trainers served several runs then."""

CLONE = Path(os.environ.get(command.SOURCES, "")) / "prime_rl"

BY_TOKENS = "dp2-cp1-mbtokens-thd"

weights_error = partial(steps.weights_error, conventions=conventions_of(PRIME_RL.conventions))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    adapter = PrimeRLAdapter()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def description() -> Description:
    """What the judge knows of prime-rl here: its conventions."""
    return Description(declared=PRIME_RL.conventions)


def job(
    case: str = MASKED.name, layout: str = BY_TOKENS, objective: Objective = Objective.POLICY
) -> Job:
    """A mean over tokens, as all of prime-rl's are."""
    return steps.job(case, Mode.TOKEN_MEAN, layout, objective)


def test_every_option_of_the_loss_is_known(pool: RankPool) -> None:
    assert pool.description.new_options == ()


@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-mbtokens-thd",
        "dp2-cp1-mb1-thd",
        "dp2-cp2-mbtokens-thd",
        "dp4-cp1-mbtokens-thd+hybrid_sharding",
        "dp2-cp1-mbtokens-thd+not_sharded",
    ],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps", "nine_samples"])
def test_weights_are_those_of_a_mean_over_tokens(pool: RankPool, case: str, layout: str) -> None:
    given = job(case, layout)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize("objective", [Objective.SFT, Objective.KL])
def test_other_components_are_divided_by_tokens_of_their_own(
    pool: RankPool, objective: Objective
) -> None:
    given = job(layout="dp2-cp2-mbtokens-thd", objective=objective)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


def test_custom_loss_is_divided_by_tokens(pool: RankPool) -> None:
    given = job(objective=Objective.GPG)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert judge_off_policy(given, outcome.observations, description()).verdict is Verdict.CONFORMS


def test_step_without_active_tokens_has_no_gradient(pool: RankPool) -> None:
    outcome = pool.run(job("no_active_token"))

    assert isinstance(outcome, Ran), outcome
    assert not any(rank.token_weights[0].any() for rank in outcome.observations)


def test_masked_tokens_of_a_trust_region_have_no_weight_and_count(pool: RankPool) -> None:
    """21 of 30 active tokens are left, each of weight 1/30."""
    given = job("rejected_tokens", objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0].max() == pytest.approx(1 / 30)
    judged = judge_logged(given, outcome.observations, description(), Metric.REJECTED)
    assert judged.verdict is Verdict.CONFORMS


def test_default_loss_off_policy_has_its_documented_derivative(pool: RankPool) -> None:
    """-A r + 2 kl_tau log r, and probabilities that move too little for the trust region."""
    given = job(objective=Objective.OFF_POLICY)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert judge_off_policy(given, outcome.observations, description()).verdict is Verdict.MISMATCH
    batch = ProbedBatch(given.steps, given.objective)
    tokens = batch.policy_tokens
    derivative = -tokens.advantages * tokens.ratios + 2e-3 * tokens.log_ratios
    put_in = np.where(batch.dloss_dlogprob == 0, 1.0, batch.dloss_dlogprob)
    for rank in outcome.observations:
        expected = derivative * tokens.mask / tokens.mask.sum()
        assert rank.token_weights[0] * put_in == pytest.approx(expected, rel=1e-5)


def test_copies_that_fill_up_ranks_are_told_from_samples(pool: RankPool) -> None:
    """One sample for two ranks: the other has a copy of it in which no token is trained."""
    given = job("worked_example")
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    held = [rank.forward_passes[0] >= 0 for rank in outcome.observations]
    assert sorted(map(any, held)) == [False, True]
    assert [rank.rows[0].tolist() for rank in outcome.observations] == [[1], [1]]
    judged = judge_logged(given, outcome.observations, description(), Metric.POLICY_LOSS)
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "divided_by_dp"


def test_logged_loss_is_averaged_over_the_micro_batches_of_all_ranks(pool: RankPool) -> None:
    given = job("fully_masked_group", "dp2-cp2-mbtokens-thd")
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    first, *others = outcome.observations
    assert not any(rank.reported for rank in others)
    judged = judge_logged(given, outcome.observations, description(), Metric.POLICY_LOSS)
    assert judged.diagnosis is not None
    assert "shares_of_all_ranks_averaged" in (judged.diagnosis.name, *judged.diagnosis.also)
    context = step_context(given, 0, outcome.observations, description())
    assert context.placement is not None
    batch = ProbedBatch(given.steps, given.objective)
    loss = -(np.concatenate(batch.advantages) * context.expected).sum()
    passes = 4 * int(context.placement.micro_batches.max())
    assert first.reported[Metric.POLICY_LOSS] == pytest.approx((loss / passes,), rel=1e-5)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ref", "mistake"), [(f"{OLDER}^", "denominators_per_rank"), (OLDER, None)]
)
def test_older_versions_train_samples_of_one_advantage(
    tmp_path: Path, ref: str, mistake: str | None
) -> None:
    """Each source needs processes of its own."""
    options = (f"--source={CLONE}@{ref}", "--checks=weights", f"--layout={BY_TOKENS}")
    process = command.start(tmp_path, "--adapter=prime_rl", *options, "-k", MASKED.name)
    report = command.finish(process, tmp_path, "prime_rl").report

    [found] = [one for one in report.findings if one.mode == Mode.TOKEN_MEAN]
    assert found.verdict is (Verdict.MISMATCH if mistake else Verdict.CONFORMS)
    assert [cause.name for cause in report.causes] == ([mistake] if mistake else [])


def test_micro_batches_are_cut_by_tokens(pool: RankPool) -> None:
    outcome = pool.run(job(layout="dp2-cp1-mb2-thd"))

    assert isinstance(outcome, Declined)
    assert "cut by tokens" in outcome.message
