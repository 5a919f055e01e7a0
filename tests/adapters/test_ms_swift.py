"""ms-swift's real trainers, from PyPI: their inputs and the results."""

from functools import partial

import numpy as np
import pytest

from adapters.contract import Description, Job, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import conventions_of
from adapters.contract.framework import Settings
from adapters.contract.job import Unsupported
from adapters.contract.objective import Metric, Objective
from adapters.engines.generations import schedule_of
from adapters.ms_swift.engines import (
    MsSwiftDdpAdapter,
    MsSwiftDeepspeedAdapter,
    MsSwiftFsdp2Adapter,
    MsSwiftMegatronAdapter,
)
from adapters.ms_swift.framework import MS_SWIFT, generating
from conformance.judging.weights import step_context
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import AuxiliaryAggregation, Mode
from reference.rounding import weight_bound
from tests.adapters import steps
from tests.pools import pool_of, trained, trained_alone

needs_ms_swift = steps.marks("ms_swift")

CASE = "uneven_lengths"
PADDED, PACKED, SHARED = "dp2-cp1-mb2-bshd", "dp2-cp1-mb2-thd", "dp1-cp2-mb2-thd"

weights_error = partial(steps.weights_error, conventions=conventions_of(MS_SWIFT.conventions))


ddp = pool_of(MsSwiftDdpAdapter, 2)


job = partial(steps.job, case=CASE, layout=PACKED)


def test_ranks_that_share_sequences_generate_apart_and_train_together() -> None:
    """ms-swift multiplies the number of micro-batches by the number of sequence-parallel ranks."""
    schedule = generating(job(layout=SHARED))

    assert (schedule.ranks, schedule.micro_batches, schedule.micro_batch_size) == (2, 1, 4)
    assert [schedule.samples(0, rank) for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert schedule_of(job(layout=SHARED)).micro_batch_size == 4


def test_ranks_that_share_sequences_have_as_many_micro_batches_at_least() -> None:
    with pytest.raises(Unsupported, match="no 1 micro-batches on 2 of Ulysses' ranks"):
        generating(job(layout="dp1-cp2-mb1-thd"))


class OtherLossType(MsSwiftDdpAdapter):
    """Trains every job with settings that belong to no mode."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> object:
        return super().run(job, rank, batch, {**settings, **self._settings})


class TestReal:
    pytestmark = needs_ms_swift

    @pytest.mark.parametrize("layout", [PADDED, PACKED, SHARED])
    @pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT])
    def test_default_loss_and_others_have_their_documented_weights(
        self, ddp: RankPool, mode: Mode, layout: str
    ) -> None:
        given = job(mode=mode, layout=layout)
        outcome = trained(ddp, given)

        assert weights_error(outcome, given) <= weight_bound("float32")

    def test_padded_rows_of_odd_width_are_misaligned_where_ranks_share_them(
        self, ddp: RankPool
    ) -> None:
        """Gathered log-probabilities have the padding of the last rank at their end."""
        given = job(mode=Mode.SAMPLE_MEAN, layout="dp1-cp2-mb2-bshd")
        outcome = trained(ddp, given)

        [weights] = outcome.observations[0].token_weights
        batch = ProbedBatch(given.steps)
        widths = [
            max(len(batch.prompts[i]) + len(batch.responses[i]) for i in samples)
            for samples in (range(4), range(4, 8))
        ]
        assert [width % 2 for width in widths] == [1, 0]
        gradient = -weights * np.concatenate(batch.advantages)
        first, second = batch.sample < 4, batch.sample >= 4
        expected = step_context(given, 0, outcome.observations, Description()).of_term(
            AuxiliaryAggregation.WITH_POLICY_LOSS
        )
        plain = -expected.expected * np.concatenate(batch.advantages)
        assert gradient[second] == pytest.approx(plain[second], rel=1e-6)
        for sample in range(4):
            of_sample = batch.sample == sample
            assert gradient[of_sample][1:] == pytest.approx(plain[of_sample][:-1], rel=1e-6)
        assert not np.allclose(gradient[first], plain[first])

    def test_bnpo_is_the_mean_over_tokens_of_each_micro_batch_of_a_process(self) -> None:
        given = job()
        outcome = trained_alone(OtherLossType(loss_type="bnpo"), given)

        context = step_context(
            given, 0, outcome.observations, Description(declared=MS_SWIFT.conventions)
        )
        documented = context.of_term(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN).expected
        for rank in outcome.observations:
            assert rank.token_weights[0] == pytest.approx(documented, rel=1e-6)

    def test_cispo_has_its_documented_derivative(self) -> None:
        given = job(objective=Objective.OFF_POLICY)
        outcome = trained_alone(OtherLossType(loss_type="cispo", epsilon_high=1.3125), given)

        expected = steps.documented_gradient("cispo", given)
        for rank in outcome.observations:
            [weights] = rank.token_weights
            assert steps.gradient(given, weights) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("loss_type", ["fipo", "real"])
    def test_documented_losses_of_sequences_are_refused_without_a_teacher(
        self, loss_type: str
    ) -> None:
        """If a user names no teacher, 4.6.0 takes the policy itself as the teacher."""
        with RankPool(OtherLossType(loss_type=loss_type), None, 2) as pool:
            outcome = pool.run(job())

        assert isinstance(outcome, Crashed), outcome
        assert f"OPD-RL (teacher) does not support loss_type='{loss_type}'" in outcome.message

    @pytest.mark.parametrize("adapter", [MsSwiftFsdp2Adapter, MsSwiftDeepspeedAdapter])
    def test_weights_do_not_depend_on_what_shards_the_model(
        self, adapter: type[MsSwiftDdpAdapter], other_release: None
    ) -> None:
        given = job(mode=Mode.SAMPLE_MEAN)
        outcome = trained_alone(adapter(), given)

        assert weights_error(outcome, given) <= weight_bound("float32")

    @pytest.mark.parametrize("layout", [PADDED, PACKED, "dp1-cp2-mb1-thd"])
    def test_weights_on_megatron_are_those_of_the_documents(
        self, layout: str, other_release: None
    ) -> None:
        given = job(mode=Mode.TOKEN_MEAN, layout=layout)
        with RankPool(MsSwiftMegatronAdapter(), None, 2) as pool:
            outcome = pool.run(given)

        if isinstance(outcome, Declined) and "mcore_bridge" in outcome.message:
            pytest.skip("mcore-bridge is not installed")
        assert isinstance(outcome, Ran), outcome
        assert weights_error(outcome, given) <= weight_bound("float32")
        assert Metric.LOSS in outcome.observations[0].reported

    def test_generation_that_processes_do_not_divide_is_refused_on_megatron(
        self, other_release: None
    ) -> None:
        """The arguments pass validation, but the first step fails an assertion."""
        given = job(mode=Mode.TOKEN_MEAN, layout="dp1-cp2-mb1-thd", case="unequal_groups")
        with RankPool(MsSwiftMegatronAdapter(), None, 2) as pool:
            outcome = pool.run(given)

        assert isinstance(outcome, Declined), outcome
        if "mcore_bridge" in outcome.message:
            pytest.skip("mcore-bridge is not installed")
        assert "11 samples are no multiple of 2 processes" in outcome.message
