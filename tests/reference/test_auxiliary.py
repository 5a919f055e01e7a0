"""Aggregation of auxiliary losses and diagnostics."""

import pytest

from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode, auxiliary_aggregation

SAMPLE_MEAN = Aggregation(Mode.SAMPLE_MEAN)
TOKEN_MEAN = Aggregation(Mode.TOKEN_MEAN)
MODES = [SAMPLE_MEAN, Aggregation(Mode.PROMPT_MEAN), TOKEN_MEAN, Aggregation(Mode.CONSTANT, 40)]


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_reductions_of_their_own_do_not_follow_the_mode(policy: Aggregation) -> None:
    assert auxiliary_aggregation(policy, AuxiliaryAggregation.SAMPLE_MEAN) == SAMPLE_MEAN
    assert auxiliary_aggregation(policy, AuxiliaryAggregation.TOKEN_MEAN) == TOKEN_MEAN


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_one_follows_the_policy_loss_in_every_mode(policy: Aggregation) -> None:
    assert auxiliary_aggregation(policy, AuxiliaryAggregation.WITH_POLICY_LOSS) == policy


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_default_is_per_token_where_the_policy_loss_is(policy: Aggregation) -> None:
    expected = TOKEN_MEAN if policy == TOKEN_MEAN else SAMPLE_MEAN

    assert auxiliary_aggregation(policy, AuxiliaryAggregation.WITH_TOKEN_MEAN) == expected


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_within_a_micro_batch_a_mean_over_micro_batches_is_what_it_says(
    policy: Aggregation,
) -> None:
    assert auxiliary_aggregation(policy, AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN) == TOKEN_MEAN
    assert (
        auxiliary_aggregation(policy, AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN) == SAMPLE_MEAN
    )


def test_means_over_micro_batches_alone_depend_on_the_cut() -> None:
    assert {how for how in AuxiliaryAggregation if how.depends_on_cut} == {
        AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
        AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN,
    }
