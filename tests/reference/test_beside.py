"""How what stands beside the policy loss is reduced."""

from __future__ import annotations

import pytest

from reference.aggregation import Aggregation, Beside, InvalidAggregationError, Mode, beside

SAMPLE_MEAN = Aggregation(Mode.SAMPLE_MEAN)
TOKEN_MEAN = Aggregation(Mode.TOKEN_MEAN)
MODES = [SAMPLE_MEAN, Aggregation(Mode.PROMPT_MEAN), TOKEN_MEAN, Aggregation(Mode.CONSTANT, 40)]


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_reductions_of_their_own_do_not_follow_the_mode(policy: Aggregation) -> None:
    assert beside(policy, Beside.SAMPLE_MEAN) == SAMPLE_MEAN
    assert beside(policy, Beside.TOKEN_MEAN) == TOKEN_MEAN


@pytest.mark.parametrize("policy", MODES, ids=lambda policy: policy.mode)
def test_default_is_per_token_where_the_policy_loss_is(policy: Aggregation) -> None:
    expected = TOKEN_MEAN if policy == TOKEN_MEAN else SAMPLE_MEAN

    assert beside(policy, Beside.WITH_TOKEN_MEAN) == expected


def test_means_of_micro_batches_are_no_reduction_of_a_step() -> None:
    with pytest.raises(InvalidAggregationError, match="depends on how a step is cut"):
        beside(SAMPLE_MEAN, Beside.MICRO_BATCH_MEAN)
