"""TRL's real trainer, from PyPI: its inputs and the results."""

from dataclasses import replace
from functools import partial

import pytest

from adapters.contract import Description, Job, Option
from adapters.contract.description import Documented, conventions_of
from adapters.contract.job import Configuration, Setting
from adapters.contract.objective import Metric, Objective
from adapters.engines.generations import schedule_of
from adapters.trl.engines import TrlDdpAdapter, TrlFsdp2Adapter
from adapters.trl.framework import ESTIMATOR, GRPO
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Trained, step_context
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from reference.aggregation import Aggregation, AuxiliaryAggregation, DivergenceEstimator, Mode
from reference.rounding import weight_bound
from tests.adapters import steps
from tests.pools import pool_of, trained, trained_alone

needs_trl = steps.marks("trl")


DECLARED = {
    **GRPO.conventions,
    "kl_estimator": Documented(DivergenceEstimator.K3_BY_RATIO, ESTIMATOR),
}
"""The conventions that the adapter declares for TRL 1.16.0."""

weights_error = partial(steps.weights_error, conventions=conventions_of(DECLARED))
PLAIN, ONE_RANK = "dp2-cp1-mb2-bshd", "dp1-cp1-mb2-bshd"
SHARED, SPLIT = (
    f"{PLAIN}+{option}" for option in (Option.SHARED_GENERATION, Option.SPLIT_GENERATION)
)


ddp = pool_of(TrlDdpAdapter, 2)


def description() -> Description:
    """The part of TRL's description that judges need: the conventions."""
    return Description(declared=DECLARED)


job = partial(steps.job, layout=PLAIN)


def test_generation_of_one_step_is_cut_on_each_rank() -> None:
    schedule = schedule_of(job(case="two_steps"), iterations=1)

    assert schedule.generation_size == 8
    assert schedule.generations == schedule.steps * schedule.iterations == 2
    assert schedule.samples(1, 0) == [8, 9, 10, 11]
    assert schedule.samples(1, 1) == [12, 13, 14, 15]
    assert schedule.observed == [0, 1]


def test_generation_of_all_steps_has_a_part_of_each_on_every_rank() -> None:
    schedule = schedule_of(job(case="two_steps", layout=SHARED), iterations=2)

    assert schedule.generation_size == 16
    assert schedule.generations == 1
    assert schedule.samples(0, 1) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert schedule.steps * schedule.iterations == 4
    assert schedule.observed == [2, 3], "both steps are trained before either is trained again"


def test_generation_of_a_micro_batch_has_one_of_every_rank() -> None:
    schedule = schedule_of(job(case="two_steps", layout=SPLIT), iterations=1)

    assert schedule.generation_size == 4
    assert schedule.generations == 4
    assert [schedule.samples(1, rank) for rank in (0, 1)] == [[4, 5], [6, 7]]


def test_last_of_two_iterations_is_observed() -> None:
    assert schedule_of(job(case="two_steps"), iterations=2).observed == [1, 3]


class OtherLossType(TrlDdpAdapter):
    """Trains every job with settings that belong to no mode."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def settings(self, job: Job) -> dict[str, object]:
        return super().settings(job) | self._settings


class Forgetful(TrlFsdp2Adapter):
    """Lets transformers forget the world in which Accelerate shards a model."""

    def settings(self, job: Job) -> dict[str, object]:
        chosen = super().settings(job)
        del chosen["accelerator_config"]
        return chosen


class TestReal:
    pytestmark = needs_trl

    def test_model_that_is_not_sharded_says_nothing_of_fsdp2(self) -> None:
        with RankPool(Forgetful(), None, 2) as pool:
            outcome = pool.run(job())

        assert isinstance(outcome, Declined)
        assert "MULTI_CPU instead of FSDP" in outcome.message

    def test_luspo_adds_the_tokens_of_a_sample_up(self, ddp: RankPool) -> None:
        given = replace(job(), aggregation=Aggregation(Mode.CONSTANT, 1.0))
        outcome = trained(ddp, given)

        assert weights_error(outcome, given) <= weight_bound("float32")

    def test_divisor_is_typed_on_the_command_line_or_in_a_file(self, ddp: RankPool) -> None:
        plain = job(case="uneven_lengths", mode=Mode.CONSTANT, layout=ONE_RANK)
        in_file = frozenset({Setting.MODE, Setting.DIVISOR})
        for settings in (Configuration(divisor="80"), Configuration(divisor="80", in_file=in_file)):
            outcome = trained(ddp, replace(plain, configuration=settings))

            [weights] = outcome.observations[0].token_weights
            assert weights.max() == pytest.approx(1 / (80 * 8))

    def test_policy_loss_that_is_logged_apart_is_divided_by_micro_batches(
        self, ddp: RankPool
    ) -> None:
        """Micro-batches have shares of `dapo`'s loss to be summed, but TRL logs their average."""
        given = replace(job(), configuration=Configuration(entropy=True))
        outcome = trained(ddp, given)

        judged = judge_logged(
            Trained(given, outcome.observations, description()), metric=Metric.POLICY_LOSS
        )
        assert judged.diagnosis.name == "divided_by_dp_or_micro_batches_or_group_size"

    def test_bnpo_is_the_mean_over_tokens_of_each_micro_batch_of_a_process(self) -> None:
        given = job()
        outcome = trained_alone(OtherLossType(loss_type="bnpo"), given)

        context = step_context(given, 0, outcome.observations, description())
        documented = context.of_term(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN).expected
        for rank in outcome.observations:
            assert rank.token_weights[0] == pytest.approx(documented, rel=1e-6)

    @pytest.mark.parametrize(
        "settings",
        [{"loss_type": "cispo", "epsilon_high": 1.3125}, {"loss_type": "vespo"}],
        ids=lambda settings: settings["loss_type"],
    )
    def test_losses_without_a_formula_in_the_reference_have_their_documented_derivative(
        self, settings: dict[str, object]
    ) -> None:
        given = job(objective=Objective.OFF_POLICY)
        outcome = trained_alone(OtherLossType(**settings), given)

        expected = steps.documented_gradient(str(settings["loss_type"]), given)
        for rank in outcome.observations:
            [weights] = rank.token_weights
            assert steps.gradient(given, weights) == pytest.approx(expected, rel=1e-5)
