"""verl's real trainer and engines, from PyPI: what they are given, and what is read off them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

from adapters.contract import Depth, Job, Layout
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.verl import ENGINES
from adapters.verl.megatron import VerlMegatronAdapter
from conformance.corpus.cases import CORPUS
from conformance.judging.weights import largest_error
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from reference.weights import token_weights

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed"),
]

CASES = {case.name: case for case in CORPUS}
MASKED = CASES["fully_masked_sample"]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with RankPool(request.param(), None, 2) as pool:
        yield pool


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    with RankPool(VerlMegatronAdapter(), None, 2) as pool:
        yield pool


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: str = "dp2-cp1-mb2-thd",
    objective: Objective = Objective.POLICY,
) -> Job:
    return Job(
        steps=CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=Layout.parse(layout),
        depth=Depth.STEP,
        objective=objective,
    )


@pytest.mark.parametrize("layout", ["dp2-cp1-mb2-bshd", "dp1-cp2-mbtokens-thd"])
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_every_step_of_a_batch_is_a_mini_batch_whose_weights_are_right(
    pool: RankPool, case: str, layout: str
) -> None:
    """verl balances lengths over ranks, which would mix the samples of two steps."""
    given = job(case, Mode.SAMPLE_MEAN, layout)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    for index, step in enumerate(given.steps):
        right = token_weights(step, given.aggregation)
        for rank in outcome.observations:
            error = largest_error(rank.token_weights[index], right)
            assert error is not None
            assert error <= weight_bound("float32")


def test_ranks_have_whole_samples_and_log_the_same(pool: RankPool) -> None:
    given = job(objective=Objective.COMBINED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    first, second = outcome.observations
    held = np.stack([rank.forward_passes[0] >= 0 for rank in (first, second)])
    assert (held.sum(axis=0) == 1).all()
    assert first.reported == second.reported
    assert first.reported.keys() == {
        Metric.POLICY_LOSS,
        Metric.LOSS,
        Metric.CLIP_FRACTION,
        Metric.POLICY_KL,
        Metric.ENTROPY,
        Metric.KL,
    }


def test_given_log_probabilities_are_those_of_the_tokens(pool: RankPool) -> None:
    """The mean of log-ratios is logged as what the policy has moved by."""
    given = job(objective=Objective.OFF_POLICY, layout="dp1-cp1-mb1-thd")
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    batch = ProbedBatch(given.steps, given.objective)
    old, mask = np.concatenate(batch.old_log_probs), np.concatenate(batch.masks)
    [moved] = outcome.observations[0].reported[Metric.POLICY_KL]
    assert moved == pytest.approx(old[mask].mean(), rel=1e-6)


def test_sizes_that_ranks_do_not_divide_are_no_configuration_of_a_user(pool: RankPool) -> None:
    outcome = pool.run(job("nine_samples"))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"
    assert "mini-batches are multiples of 2 ranks, 9 samples are none" in outcome.message


def test_batch_without_active_tokens_is_refused(pool: RankPool) -> None:
    outcome = pool.run(job("no_active_token"))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "refused"
    assert "at least one valid token" in outcome.message


def test_divisor_is_an_integer(pool: RankPool) -> None:
    given = Job(
        steps=MASKED.steps,
        aggregation=Aggregation(Mode.CONSTANT, 2.5),
        layout=Layout.parse("dp1-cp1-mb1-thd"),
        depth=Depth.STEP,
    )
    outcome = pool.run(given)

    assert isinstance(outcome, Declined)
    assert "the divisor 2.5 is none" in outcome.message


def errors(given: Job, outcome: Ran) -> list[float | None]:
    """The largest error of a weight on each rank, in a job of one step."""
    right = token_weights(given.steps[0], given.aggregation)
    return [largest_error(rank.token_weights[0], right) for rank in outcome.observations]


@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-pp2-mb2-thd",
        "dp1-cp1-pp2-mb2-bshd",
        "dp1-cp1-pp2-mb2-thd+interleaved",
        "dp1-cp1-tp2-mb2-thd",
        "dp2-cp1-mb2-thd+average_in_collective",
        "dp2-cp1-mb2-thd+overlap_grad_reduce",
        "dp2-cp1-mb2-thd+replicated_optimizer",
        "dp2-cp1-mbtokens-thd+per_token_loss",
    ],
)
def test_megatron_trains_the_same_in_pipelines_and_with_all_options(
    megatron: RankPool, layout: str
) -> None:
    """Every stage of a pipeline has a probe, and the trainer logs what the last one knows."""
    given = job(layout=layout)
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    for error in errors(given, outcome):
        assert error is not None
        assert error <= weight_bound("float32")
    first, second = outcome.observations
    assert first.reported == second.reported
    assert Metric.POLICY_LOSS in first.reported


def test_megatron_deals_mini_batches_to_data_parallel_ranks_alone(megatron: RankPool) -> None:
    given = job("nine_samples", layout="dp1-cp2-mb1-thd")
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    assert max(filter(None, errors(given, outcome))) <= weight_bound("float32")


def test_megatron_counts_half_tokens_of_context_parallel_ranks_as_none(megatron: RankPool) -> None:
    """Micro-batches of 15, 15, 15 and 13 tokens are counted as 14, 14, 14 and 12, of 58 in all."""
    given = job(layout="dp1-cp2-mbtokens-thd+per_token_loss")
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    right = token_weights(given.steps[0], given.aggregation)
    for rank in outcome.observations:
        np.testing.assert_allclose(rank.token_weights[0], right * 58 / 54, rtol=1e-6)
