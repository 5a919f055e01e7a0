"""verl's real trainer and engines, from PyPI: their inputs and the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from adapters.contract import Job, Layout, Option, Unsupported
from adapters.contract.description import conventions_of
from adapters.contract.objective import Objective
from adapters.verl.framework import FSDP, VERL
from adapters.verl.fsdp import VerlFsdp2Adapter
from adapters.verl.megatron import VerlMegatronAdapter
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED, job

pytestmark = steps.marks("verl")

weights_error = partial(steps.weights_error, conventions=conventions_of(VERL.conventions))


@pytest.fixture(
    scope="module", params=[VerlFsdp2Adapter, VerlMegatronAdapter], ids=lambda engine: engine.engine
)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with RankPool(request.param(), None, 2) as pool:
        yield pool


on_fsdp2 = pytest.mark.parametrize("pool", [VerlFsdp2Adapter], indirect=True, ids=["fsdp2"])
on_megatron = pytest.mark.parametrize(
    "pool", [VerlMegatronAdapter], indirect=True, ids=["megatron"]
)


def of_constant(divisor: float) -> Job:
    """A job of `constant` with this divisor."""
    return replace(job(), aggregation=Aggregation(Mode.CONSTANT, divisor))


def test_mini_batch_is_counted_in_prompts_of_several_samples() -> None:
    """If prompts have unequal numbers of samples, each sample is given as a prompt of its own."""
    even = FSDP.settings(job("uneven_lengths", layout="dp2-cp1-mb1-thd"))
    uneven = FSDP.settings(job("nine_samples", layout="dp1-cp1-mb1-thd"))

    assert even["actor_rollout_ref.rollout.n"] == 2
    assert even["ppo_mini_batch_size"] == 4
    assert uneven["actor_rollout_ref.rollout.n"] == 1
    assert uneven["ppo_mini_batch_size"] == 9


@pytest.mark.parametrize(
    ("case", "criterion"), [("rejected_samples", "seq_mean_k1"), ("rejected_sample", "token_k1")]
)
def test_samples_are_rejected_as_a_whole_where_no_token_is_rejected_alone(
    case: str, criterion: str
) -> None:
    settings = FSDP.settings(job(case, objective=Objective.REJECTION))

    assert settings["algorithm.rollout_correction.rollout_rs"] == criterion


@on_fsdp2
@pytest.mark.parametrize("divisor", [1.0, 1 / MASKED.steps[0].size, 2.5])
def test_any_divisor_has_a_mode(pool: RankPool, divisor: float) -> None:
    """A divisor of 1 is that of `seq-mean-token-sum`; 1 / samples is that of `token-sum`."""
    given = of_constant(divisor)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@on_megatron
def test_megatron_deals_mini_batches_to_data_parallel_ranks_alone(pool: RankPool) -> None:
    given = job("nine_samples", layout="dp1-cp2-mb1-thd")

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@on_fsdp2
def test_rejection_is_logged_once_for_all_steps(pool: RankPool) -> None:
    outcome = pool.run(job("two_steps", objective=Objective.REJECTION))

    assert isinstance(outcome, Declined), outcome
    assert (outcome.verdict, outcome.message[:17]) == ("unsupported", "no log of rejecti")


NINE = job("nine_samples", layout="dp2-cp1-mbtokens-thd")


@on_fsdp2
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (job("nine_samples", layout="dp1-cp1-mb2-thd"), "data size must be divisible"),
        (replace(NINE, steps=NINE.steps * 2), "Got mini_batch_size=9"),
        (job("nine_samples", layout="dp2-cp1-mb2-thd+legacy_trainer"), "real_train_batch_size (9)"),
        (job("nine_samples", layout="dp2-cp1-mbtokens-thd+legacy_trainer"), "9 % 2 != 0"),
    ],
    ids=["micro-batches", "mini-batches", "configuration", "ranks"],
)
def test_verl_refuses_samples_that_are_left_over(pool: RankPool, given: Job, words: str) -> None:
    outcome = pool.run(given)

    assert isinstance(outcome, (Declined, Crashed)), outcome
    assert outcome.verdict == "refused"
    assert words in outcome.message


@pytest.mark.parametrize(
    ("case", "objective"), [(MASKED.name, Objective.GAE), ("nine_samples", Objective.POLICY)]
)
def test_nothing_else_is_looked_at_where_counts_are_cut(case: str, objective: Objective) -> None:
    layout = Layout(dp=2, cp=2, micro_batches=1, options=(Option.PER_TOKEN_LOSS,))
    with pytest.raises(Unsupported, match="round counts down"):
        VerlMegatronAdapter().settings(job(case, layout=str(layout), objective=objective), "")


def test_process_groups_end_with_their_world(pool: RankPool) -> None:
    """Threads of process groups poll: with many worlds, they kept a rank busier than its steps.

    Groups of the first worlds may stay until garbage is collected. A grid of Megatron has two dozen
    groups.
    """
    threads = []
    for index in range(9):
        layout = ("dp1-cp2-mb1-thd", "dp2-cp1-mb1-thd")[index % 2]
        assert isinstance(pool.run(job(layout=layout)), Ran)
        threads.append(len([*Path(f"/proc/{pool.pids()[0]}/task").iterdir()]))

    assert len({*threads[4::2]}) == len({*threads[5::2]}) == 1, threads


def test_world_is_entered_again_with_groups_of_its_own() -> None:
    """torch caches how sharded tensors are reduced, even with the mesh of a world that has ended.

    Groups are identified by numbers, and the second world has fewer groups than the first.
    """
    hybrid = "dp4-cp1-mb1-thd+hybrid_sharding"
    first = ("dp4-cp1-mb1-thd", "dp4-cp1-mb1-bshd", "dp2-cp2-mb1-thd")
    sliced = "dp2-cp2-mb1-thd+hybrid_sharding"
    with RankPool(VerlFsdp2Adapter(), None, 4) as pool:
        for layout in (*first, sliced, hybrid, "dp1-cp1-mb1-thd", hybrid):
            assert isinstance(pool.run(job(layout=layout)), Ran), layout


def find_no_trl() -> None:
    from adapters.verl.importing import module

    VerlFsdp2Adapter().load(None)
    assert not module("models.transformers.monkey_patch").is_trl_available()
    assert not module("utils.model").is_trl_available()


def tell_steps_apart() -> None:
    from adapters.verl.trainers.legacy import numbers_of_steps

    logged = [0.0, 1.0, 2.0, 3.0]
    assert numbers_of_steps(logged, job("two_steps")) == [[0, 1], [2, 3]]
    with pytest.raises(Unsupported, match="does not separate the steps"):
        numbers_of_steps(logged, job("two_steps", layout="dp2-cp1-mbtokens-thd"))


def test_verl_finds_no_trl() -> None:
    """verl patches TRL's value heads before it makes a model, but newer TRL releases lack them."""
    assert command.fork(find_no_trl) == 0


def test_numbers_of_micro_batches_are_told_apart_by_their_steps() -> None:
    """Versions before 0.7.1 log a list with one number for each micro-batch and rank."""
    assert command.fork(tell_steps_apart) == 0
