"""verl's real trainer and engines, from PyPI: what they are given, and what is read off them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from adapters.contract import Depth, Description, Job, Layout, Option, Unsupported
from adapters.contract.conventions import conventions_of
from adapters.contract.objective import (
    CORRECTIONS,
    KL_COEFFICIENT,
    OF_ROLLOUTS,
    Metric,
    Objective,
)
from adapters.contract.probed_batch import ProbedBatch
from adapters.verl import ENGINES
from adapters.verl.adapter import CONVENTIONS
from adapters.verl.engines.fsdp import VerlFsdp2Adapter, VerlFsdpAdapter
from adapters.verl.engines.megatron import VerlMegatronAdapter
from adapters.verl.objectives import ACTOR, ROLLOUT
from adapters.verl.sizes import sizes
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from reference.weights import token_weights
from tests.adapters import steps
from tests.adapters.steps import MASKED, job

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed"),
]

weights_error = partial(steps.weights_error, conventions=conventions_of(CONVENTIONS))


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with RankPool(request.param(), None, 2) as pool:
        yield pool


@pytest.fixture(scope="module", params=[VerlFsdpAdapter, VerlFsdp2Adapter], ids=["fsdp", "fsdp2"])
def fsdp(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with RankPool(request.param(), None, 2) as pool:
        yield pool


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    with RankPool(VerlMegatronAdapter(), None, 2) as pool:
        yield pool


def description() -> Description:
    """What the judge knows of verl here: its conventions."""
    return Description(declared=CONVENTIONS)


@pytest.mark.parametrize("layout", ["dp2-cp1-mb2-bshd", "dp1-cp2-mbtokens-thd"])
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_every_step_of_a_batch_is_a_mini_batch_whose_weights_are_right(
    pool: RankPool, case: str, layout: str
) -> None:
    """verl balances lengths over ranks, which would mix the samples of two steps."""
    given = job(case, Mode.SAMPLE_MEAN, layout)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


def test_ranks_have_whole_samples_and_log_the_same(pool: RankPool) -> None:
    given = job(objective=Objective.COMBINED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    first, second = outcome.observations
    held = np.stack([rank.forward_passes[0] >= 0 for rank in (first, second)])
    assert (held.sum(axis=0) == 1).all()
    assert first.reported == second.reported
    assert first.reported.keys() - {*OF_ROLLOUTS} == {
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


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT])
@pytest.mark.parametrize("layout", ["dp2-cp1-mb1-thd", "dp2-cp1-mbtokens-thd"])
def test_rows_of_padding_weigh_nothing_and_count_in_means_over_samples(
    pool: RankPool, mode: Mode, layout: str
) -> None:
    """verl fills 9 samples up to a mini-batch of 10, and divides by its configured size."""
    given = job("nine_samples", mode, layout)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [step] = given.steps
    counted = 1.0 if mode is Mode.TOKEN_MEAN else 9 / 10
    for rank in outcome.observations:
        np.testing.assert_allclose(
            rank.token_weights[0], token_weights(step, given.aggregation) * counted, rtol=1e-6
        )


def test_mini_batches_of_several_steps_are_not_filled_up(pool: RankPool) -> None:
    """Rows of padding would lie behind the samples of the last step."""
    [step] = job("nine_samples").steps
    given = replace(job("nine_samples"), steps=(step, step))
    outcome = pool.run(given)

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"
    assert "mini-batches are multiples of 2 ranks, 9 samples are none" in outcome.message


def test_mini_batch_is_counted_in_prompts_of_several_samples() -> None:
    """Where every prompt has as many; else each sample is a prompt of its own."""
    even = sizes(job("uneven_lengths", layout="dp2-cp1-mb1-thd"), 2)
    uneven = sizes(job("nine_samples", layout="dp1-cp1-mb1-thd"), 1)

    assert even[f"{ROLLOUT}.n"] == 2
    assert even[f"{ACTOR}.ppo_mini_batch_size"] == 4
    assert uneven[f"{ROLLOUT}.n"] == 1
    assert uneven[f"{ACTOR}.ppo_mini_batch_size"] == 9


@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_second_epoch_has_the_weights_of_the_first(pool: RankPool, case: str) -> None:
    given = job(case, layout="dp2-cp1-mb2-thd+two_epochs", objective=Objective.COMBINED)
    once = pool.run(replace(given, layout=Layout.parse("dp2-cp1-mb2-thd")))
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert isinstance(once, Ran), once
    for twice, first in zip(outcome.observations, once.observations, strict=True):
        for step in range(len(given.steps)):
            np.testing.assert_array_equal(twice.token_weights[step], first.token_weights[step])
            np.testing.assert_array_equal(twice.forward_passes[step], first.forward_passes[step])
        assert twice.reported == first.reported


def test_fine_tuning_knows_no_epochs_of_a_batch(pool: RankPool) -> None:
    outcome = pool.run(job(layout="dp2-cp1-mb2-thd+two_epochs", objective=Objective.SFT))

    assert isinstance(outcome, Declined)
    assert "epochs of a batch are PPO's" in outcome.message


def test_verl_finds_no_trl() -> None:
    """It patches TRL's value heads before it makes a model, and newer releases have none there."""
    program = (
        "from adapters.verl.engines.fsdp import VerlFsdpAdapter;"
        "from adapters.verl.importing import module; VerlFsdpAdapter().load(None);"
        "print(module('models.transformers.monkey_patch').is_trl_available(),"
        " module('utils.model').is_trl_available())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.stdout.splitlines()[-1:] == ["False False"], ran.stderr


def test_batch_without_active_tokens_is_refused(pool: RankPool) -> None:
    outcome = pool.run(job("no_active_token"))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "refused"
    assert "at least one valid token" in outcome.message


@pytest.mark.parametrize("divisor", [1.0, 1 / MASKED.steps[0].size])
def test_modes_that_only_add_tokens_up_are_constant(pool: RankPool, divisor: float) -> None:
    """`seq-mean-token-sum` with a divisor of 1, `token-sum` with one over the number of samples."""
    given = Job(
        steps=MASKED.steps,
        aggregation=Aggregation(Mode.CONSTANT, divisor),
        layout=Layout.parse("dp2-cp1-mb2-thd"),
        depth=Depth.STEP,
    )
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


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
    assert weights_error(outcome, given) <= weight_bound("float32")
    first, second = outcome.observations
    assert first.reported == second.reported
    assert Metric.POLICY_LOSS in first.reported


def test_megatron_deals_mini_batches_to_data_parallel_ranks_alone(megatron: RankPool) -> None:
    given = job("nine_samples", layout="dp1-cp2-mb1-thd")
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


def test_megatron_counts_half_tokens_of_context_parallel_ranks_as_none(megatron: RankPool) -> None:
    """Micro-batches of 15, 15, 15 and 13 tokens are counted as 14, 14, 14 and 12, of 58 in all."""
    given = job(layout="dp1-cp2-mbtokens-thd+per_token_loss")
    outcome = megatron.run(given)

    assert isinstance(outcome, Ran), outcome
    right = token_weights(given.steps[0], given.aggregation)
    for rank in outcome.observations:
        np.testing.assert_allclose(rank.token_weights[0], right * 58 / 54, rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "objective"), [(MASKED.name, Objective.GAE), ("nine_samples", Objective.POLICY)]
)
def test_nothing_else_is_looked_at_where_counts_are_cut(case: str, objective: Objective) -> None:
    layout = Layout(dp=2, cp=2, micro_batches=1, options=(Option.PER_TOKEN_LOSS,))
    with pytest.raises(Unsupported, match="cut counts with per_token_loss"):
        VerlMegatronAdapter().settings(job(case, layout=str(layout), objective=objective), "")


REJECTED = "rejected_tokens"
"""21 of 30 active tokens are left."""


def test_rejected_tokens_have_no_weight_and_are_logged_as_a_fraction_of_all(
    pool: RankPool,
) -> None:
    given = job(REJECTED, Mode.SAMPLE_MEAN, objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [step] = given.steps
    assert weights_error(outcome, given) <= weight_bound("float32")
    for rank in outcome.observations:
        assert (rank.token_weights[0] != 0).sum() == step.mask.sum() == 21
        assert rank.reported[Metric.REJECTED] == pytest.approx((9 / 30,))


def test_mean_over_tokens_is_divided_by_those_that_rejection_has_removed_too(
    pool: RankPool,
) -> None:
    """verl's engines count `loss_mask`, and its trainer modifies `response_mask` alone."""
    outcome = pool.run(job(REJECTED, Mode.TOKEN_MEAN, objective=Objective.REJECTION))

    assert isinstance(outcome, Ran), outcome
    [found] = outcome.observations[0].token_weights
    assert found.max() == pytest.approx(1 / 30)


def test_what_is_rejected_of_several_steps_is_logged_once(pool: RankPool) -> None:
    outcome = pool.run(job("two_steps", objective=Objective.REJECTION))

    assert isinstance(outcome, Declined)
    assert "logged once for a batch" in outcome.message


@pytest.mark.parametrize("objective", [*CORRECTIONS, Objective.DRO])
def test_losses_with_constants_of_their_own_have_right_derivatives(
    pool: RankPool, objective: Objective
) -> None:
    given = job(objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_off_policy(given, outcome.observations, description())
    assert judgement.verdict is Verdict.CONFORMS


@pytest.mark.parametrize(
    ("objective", "case"),
    [
        (Objective.GROUP_NORMALISED, "split_groups"),
        (Objective.GROUP_CENTRED, "split_groups"),
        (Objective.LEAVE_ONE_OUT, "split_groups"),
        (Objective.REINFORCE_PP, MASKED.name),
        (Objective.GAE, MASKED.name),
        (Objective.PENALISED_GAE, MASKED.name),
    ],
)
def test_advantages_of_verls_estimators_are_the_references(
    fsdp: RankPool, objective: Objective, case: str
) -> None:
    given = job(case, Mode.SAMPLE_MEAN, objective=objective)
    outcome = fsdp.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_advantages(given, outcome.observations, description())
    assert judgement.verdict is Verdict.CONFORMS


def test_reward_is_lost_where_the_last_token_is_masked(fsdp: RankPool) -> None:
    """verl puts it there, and its recursion skips that token: V alone is left of r - V."""
    given = job("short_responses", Mode.SAMPLE_MEAN, objective=Objective.GAE)
    outcome = fsdp.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_advantages(given, outcome.observations, description())
    assert judgement.diagnosis is not None
    assert judgement.diagnosis.name == "reward_off_the_path_lost"


def test_rollouts_are_logged_by_verls_own_names(fsdp: RankPool) -> None:
    given = job("long_prompts", Mode.SAMPLE_MEAN, objective=Objective.PENALISED_GAE)
    outcome = fsdp.run(given)

    assert isinstance(outcome, Ran), outcome
    batch = ProbedBatch(given.steps, given.objective)
    mask = np.concatenate(batch.masks)
    divergences = np.split(batch.rollouts.divergences, np.cumsum(given.steps[0].response_lengths))
    of_samples = [
        of_sample[active].mean()
        for of_sample, active in zip(divergences, batch.masks, strict=False)
    ]
    penalties = sum(KL_COEFFICIENT * (batch.rollouts.divergences * mask))
    for rank in outcome.observations:
        expected = {
            Metric.RESPONSE_LENGTH: 24 / 8,
            Metric.VALUE: np.concatenate(batch.values)[mask].mean(),
            Metric.DIVERGENCE: np.mean(of_samples),
            # verl's rewards have the penalties.
            Metric.REWARD: (batch.rewards.sum() - penalties) / 8,
        }
        for metric, value in expected.items():
            assert rank.reported[metric] == pytest.approx((value,), rel=1e-6), metric
        assert rank.reported[Metric.ADVANTAGE] == pytest.approx((0,), abs=1e-6)


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT])
def test_critics_loss_is_aggregated_as_the_policys_in_its_own_micro_batches(
    pool: RankPool, mode: Mode
) -> None:
    given = job(mode=mode, objective=Objective.VALUE)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")
    for rank in outcome.observations:
        assert np.unique(rank.forward_passes[0]).tolist() == [-1, 0, 1]


def test_fine_tuning_is_a_mean_over_tokens(pool: RankPool) -> None:
    given = job("two_steps", objective=Objective.SFT)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


def test_fine_tuning_has_no_other_aggregation(pool: RankPool) -> None:
    outcome = pool.run(job(mode=Mode.SAMPLE_MEAN, objective=Objective.SFT))

    assert isinstance(outcome, Declined)
    assert "by tokens alone" in outcome.message


LEGACY = "dp2-cp1-mb2-thd+legacy_trainer"


@pytest.mark.parametrize("layout", [LEGACY, "dp1-cp2-mbtokens-thd+legacy_trainer"])
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_legacy_trainer_has_the_right_weights(fsdp: RankPool, case: str, layout: str) -> None:
    given = job(case, Mode.SAMPLE_MEAN, layout)
    outcome = fsdp.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_legacy_trainer_logs_what_the_default_one_does(fsdp: RankPool, case: str) -> None:
    outcomes = [
        fsdp.run(job(case, layout=layout, objective=Objective.COMBINED))
        for layout in (LEGACY, LEGACY.split("+")[0])
    ]

    legacy, default = (outcome.observations[0].reported for outcome in outcomes)
    assert legacy.keys() == default.keys() - {*OF_ROLLOUTS}
    for metric, values in legacy.items():
        assert values == pytest.approx(default[metric], rel=1e-6), metric


def test_legacy_trainer_updates_a_critic(fsdp: RankPool) -> None:
    given = job(layout=LEGACY, objective=Objective.VALUE)
    outcome = fsdp.run(given)

    assert isinstance(outcome, Ran), outcome
    assert weights_error(outcome, given) <= weight_bound("float32")


def test_legacy_trainer_is_looked_at_from_its_update_on(fsdp: RankPool) -> None:
    outcome = fsdp.run(job(layout=LEGACY, objective=Objective.GROUP_CENTRED))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"
    assert "entered at its update of a model" in outcome.message


def test_process_groups_end_with_their_world(fsdp: RankPool) -> None:
    """Their threads poll: those of many worlds kept a rank busier than its steps did."""
    assert_threads_end(fsdp, ("dp1-cp1-mb1-thd", "dp2-cp1-mb1-thd"))


def test_process_groups_end_with_megatrons_grid(megatron: RankPool) -> None:
    """A grid has two dozen threads in each rank."""
    assert_threads_end(megatron, ("dp1-cp2-mb1-thd", "dp2-cp1-mb1-thd"))


def assert_threads_end(pool: RankPool, layouts: tuple[str, str]) -> None:
    """Those of the first layouts may stay until a cycle is collected."""
    threads = []
    for index in range(9):
        assert isinstance(pool.run(job(layout=layouts[index % 2])), Ran)
        threads.append(len([*Path(f"/proc/{pool.pids()[0]}/task").iterdir()]))

    assert len({*threads[4::2]}) == len({*threads[5::2]}) == 1, threads


def test_world_is_entered_again_with_groups_of_its_own() -> None:
    """torch remembers how sharded tensors are reduced, with the mesh of a world that has ended.

    Groups are told apart by numbers, and the second world has fewer than the first.
    """
    hybrid = "dp4-cp1-mb1-thd+hybrid_sharding"
    first = ("dp4-cp1-mb1-thd", "dp4-cp1-mb1-bshd", "dp2-cp2-mb1-thd")
    sliced = "dp2-cp2-mb1-thd+hybrid_sharding"
    with RankPool(VerlFsdp2Adapter(), None, 4) as pool:
        for layout in (*first, sliced, hybrid, "dp1-cp1-mb1-thd", hybrid):
            assert isinstance(pool.run(job(layout=layout)), Ran), layout


def test_numbers_of_micro_batches_are_told_apart_by_their_steps() -> None:
    """Versions before 0.7.1 log one number of each micro-batch and rank in one list."""
    from adapters.verl.trainers.legacy import numbers_of_steps

    logged = [0.0, 1.0, 2.0, 3.0]
    assert numbers_of_steps(logged, job("two_steps")) == [[0, 1], [2, 3]]
    with pytest.raises(Unsupported, match="does not tell steps"):
        numbers_of_steps(logged, job("two_steps", layout="dp2-cp1-mbtokens-thd"))
