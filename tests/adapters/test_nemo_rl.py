"""NeMo-RL's real trainers and workers, where a clone is given: what they train, log and decline."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Description, Job, Option
from adapters.contract.description import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.nemo_rl import DTensorV1Adapter, DTensorV2Adapter
from adapters.nemo_rl.framework import NEMO_RL
from adapters.toolkit.source import resolve
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.judging.metrics import judge_logged, judge_logged_of_rollouts
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.nemo_rl,
    pytest.mark.skipif(
        command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
    ),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra nemo-rl is not installed"),
]

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
CLONE = Path(os.environ.get(command.SOURCES, "")) / "nemo_rl"
SECOND = pytest.param(
    DTensorV2Adapter,
    marks=pytest.mark.skipif(
        find_spec("nemo_automodel") is None, reason="Automodel is not installed"
    ),
)
BOTH_MODES = [Mode.TOKEN_MEAN, Mode.SAMPLE_MEAN]
BY_TOKENS = "dp2-cp1-mbtokens-bshd"

weights_error = partial(steps.weights_error, conventions=conventions_of(NEMO_RL.conventions))


@pytest.fixture(scope="module", params=[DTensorV1Adapter, SECOND], ids=lambda one: one.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    adapter = request.param()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def description() -> Description:
    """What the judge knows of NeMo-RL here: its conventions."""
    return Description(declared=NEMO_RL.conventions)


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: str = BY_TOKENS,
    objective: Objective = Objective.POLICY,
) -> Job:
    return steps.job(case, mode, layout, objective)


def test_every_option_of_the_loss_is_known(pool: RankPool) -> None:
    assert pool.description.new_options == ()


@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-mb2-bshd",
        "dp4-cp1-mb1-bshd",
        "dp2-cp2-mb2-bshd",
        "dp1-cp2-mbtokens-bshd",
        "dp2-cp1-mbtokens-thd",
    ],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
@pytest.mark.parametrize("mode", BOTH_MODES)
def test_weights_are_those_of_the_mode(pool: RankPool, mode: Mode, case: str, layout: str) -> None:
    given = job(case, mode, layout)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


def test_copies_of_a_sharded_model_have_the_same_gradient(pool: RankPool) -> None:
    if Option.HYBRID_SHARDING not in pool.description.options:
        pytest.skip("the first worker has none")
    given = job(layout="dp4-cp1-mbtokens-thd+hybrid_sharding")

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


def test_sample_whose_loss_is_multiplied_by_0_is_none_of_the_valid_ones(pool: RankPool) -> None:
    """Eight samples, one without active tokens: the first token of three has 1/(7·3)."""
    outcome = pool.run(job(mode=Mode.SAMPLE_MEAN))

    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0][0] == pytest.approx(1 / 21)


@pytest.mark.parametrize(
    ("objective", "mode"),
    [
        (Objective.OFF_POLICY, Mode.TOKEN_MEAN),
        (Objective.OFF_POLICY, Mode.SAMPLE_MEAN),
        (Objective.DUAL_CLIP, Mode.TOKEN_MEAN),
        (Objective.GSPO, Mode.SAMPLE_MEAN),
        (Objective.CISPO, Mode.TOKEN_MEAN),
        (Objective.GPG, Mode.TOKEN_MEAN),
        (Objective.TIS_TOKEN, Mode.SAMPLE_MEAN),
        (Objective.SEQUENCE_MASKED, Mode.TOKEN_MEAN),
    ],
)
def test_off_policy_losses_have_the_derivatives_of_the_reference(
    pool: RankPool, objective: Objective, mode: Mode
) -> None:
    given = job(mode=mode, objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_off_policy(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


@pytest.mark.parametrize(
    ("objective", "mode"),
    [(Objective.GSPO, Mode.TOKEN_MEAN), (Objective.CISPO, Mode.SAMPLE_MEAN)],
)
def test_losses_of_one_mode_are_declined_in_the_other(
    pool: RankPool, objective: Objective, mode: Mode
) -> None:
    outcome = pool.run(job(mode=mode, objective=objective))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"


@pytest.mark.parametrize("mode", BOTH_MODES)
def test_divergence_is_divided_as_the_policy_loss_is(pool: RankPool, mode: Mode) -> None:
    given = job("two_steps", mode, "dp2-cp2-mb2-bshd", Objective.KL)
    outcome = pool.run(given)
    batch = ProbedBatch(
        given.steps, given.objective, conventions_of(NEMO_RL.conventions).kl_estimator
    )

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert not np.concatenate(batch.advantages).any()


def test_fine_tuning_is_a_mean_over_tokens(pool: RankPool) -> None:
    given = job(layout="dp2-cp1-mbtokens-thd", objective=Objective.SFT)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize("mode", BOTH_MODES)
def test_filtered_tokens_count_and_their_share_is_logged(pool: RankPool, mode: Mode) -> None:
    """21 of 30 active tokens are left: 0.3 are out of bounds, in either mode."""
    given = job("rejected_tokens", mode, objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    for rank in outcome.observations:
        assert rank.reported[Metric.REJECTED] == pytest.approx((0.3,))


@pytest.mark.parametrize("layout", [BY_TOKENS, "dp2-cp2-mb2-bshd", "dp4-cp1-mbtokens-thd"])
@pytest.mark.parametrize("mode", BOTH_MODES)
def test_logged_loss_is_that_of_the_gradient(pool: RankPool, mode: Mode, layout: str) -> None:
    given = job("two_steps", mode, layout)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_logged(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS


@pytest.mark.parametrize(
    ("objective", "case"),
    [
        (Objective.GROUP_NORMALISED, "split_groups"),
        (Objective.GROUP_CENTRED, "split_groups"),
        (Objective.LEAVE_ONE_OUT, "split_groups"),
        (Objective.REINFORCE_PP_BASELINE, "two_steps"),
    ],
)
def test_advantages_are_those_of_the_estimator(
    pool: RankPool, objective: Objective, case: str
) -> None:
    """The last is whitened over both optimizer steps, which are cut out of one batch."""
    given = job(case, Mode.SAMPLE_MEAN, objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


@pytest.mark.parametrize("metric", [Metric.REWARD, Metric.ADVANTAGE])
def test_means_of_rollouts_are_logged(pool: RankPool, metric: Metric) -> None:
    given = job("split_groups", Mode.SAMPLE_MEAN, objective=Objective.GROUP_CENTRED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_logged_of_rollouts(given, outcome.observations, description(), metric)
    assert judged.verdict is Verdict.CONFORMS


def test_step_without_valid_samples_ends_the_trainer(pool: RankPool) -> None:
    """The optimizer has stepped; no micro-batch is logged, and the log wants their tokens."""
    outcome = pool.run(job("no_active_token"))

    assert isinstance(outcome, Crashed), outcome
    assert "KeyError: 'global_valid_toks'" in outcome.message


@pytest.mark.parametrize(
    ("case", "layout", "verdict", "reason"),
    [
        ("nine_samples", BY_TOKENS, "refused", "not a multiple of shards"),
        ("nine_samples", "dp1-cp1-mb2-bshd", "unsupported", "no micro-batches of 4"),
        (MASKED.name, "dp2-cp1-mb2-thd", "unsupported", "cut by tokens"),
    ],
)
def test_steps_that_are_not_cut_evenly_are_declined(
    pool: RankPool, case: str, layout: str, verdict: str, reason: str
) -> None:
    outcome = pool.run(job(case, layout=layout))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == verdict
    assert reason in outcome.message
