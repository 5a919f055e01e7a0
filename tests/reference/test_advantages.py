"""Advantages of a batch of three samples, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from math import nan
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reference import advantages
from reference.advantages import Rollouts
from reference.aggregation import (
    Compared,
    Deviation,
    EstimatorConventions,
    Lone,
    Missing,
    Penalties,
    Rejected,
    TokenSet,
)
from reference.losses.constants import AdvantageConstants

if TYPE_CHECKING:
    from reference.advantages import Estimator

ROLLOUTS = Rollouts(
    rewards=np.array([1.0, 3.0, 5.0]),
    groups=np.array([0, 0, 1]),
    trajectories=np.array([0, 1, 2]),
    rejected=np.zeros(3, np.bool_),
    sample=np.array([0, 0, 0, 1, 1, 2]),
    mask=np.array([True, False, True, True, True, True]),
    values=np.array([1.0, 2.0, 3.0, 1.0, 1.0, 2.0]),
    divergences=np.array([1.0, 2.0, 1.0, 0.0, 1.0, 0.0]),
)
"""Two samples of one prompt, the first with a masked token, and a third of another prompt."""

CONSTANTS = AdvantageConstants(discount=0.5, trace=0.5, penalty=0.25, buffer=4, overlong=2.0)
ALL_TOKENS = EstimatorConventions(
    penalised=TokenSet.RESPONSE, rewarded=TokenSet.RESPONSE, whitened=TokenSet.RESPONSE
)
TRAINED = EstimatorConventions(transitions=TokenSet.ACTIVE)


@pytest.mark.parametrize(
    ("estimator", "conventions", "expected"),
    [
        (advantages.group_centred, ALL_TOKENS, [-1, -1, -1, 1, 1, 0]),
        (advantages.leave_one_out, ALL_TOKENS, [-2, -2, -2, 2, 2, 0]),
        # β·kl is 1/4, 1/2 and 1/4 in the first sample, 0 and 1/4 in the second.
        (advantages.penalised_centred, ALL_TOKENS, [-1.25, -1.5, -1.25, 1, 0.75, 0]),
        (advantages.penalised_centred, TRAINED, [-1.25, -1, -1.25, 1, 0.75, 0]),
        (
            advantages.penalised_centred,
            EstimatorConventions(penalties=Penalties.LATER_TOKENS),
            [-1.5, -1.25, -1.25, 0.75, 0.75, 0],
        ),
        # From each sample's last token back, G = ρ + G'/2: 3/4; 0 + 3/8; -1/4 + 3/16. Then 11/4; 0
        # + 11/8.
        (
            advantages.discounted_returns,
            EstimatorConventions(),
            [-0.0625, 0.375, 0.75, 1.375, 2.75, 5],
        ),
        # The first sample without its masked token: -1/4 + 3/8.
        (advantages.discounted_returns, TRAINED, [0.125, 0, 0.75, 1.375, 2.75, 5]),
        # If the masked token is penalised, too: -1/2 + 3/8 = -1/8; -1/4 - 1/16.
        (advantages.discounted_returns, ALL_TOKENS, [-0.3125, -0.125, 0.75, 1.375, 2.75, 5]),
        # From each sample's last token back, A = δ + A'/4. δ is 3/4 - 3, 0 + 3/2 - 2 and -1/4 + 1 -
        # 1 in the first sample, 11/4 - 1 and 1/2 - 1 in the second, and 5 - 2 in the third.
        (advantages.gae, EstimatorConventions(), [-0.515625, -1.0625, -2.25, -0.0625, 1.75, 3]),
        # The first sample without its masked token: δ are 3/4 - 3 and -1/4 + 3/2 - 1.
        (advantages.gae, TRAINED, [-0.3125, 0, -2.25, -0.0625, 1.75, 3]),
    ],
)
def test_advantages_are_those_worked_out_by_hand(
    estimator: Estimator, conventions: EstimatorConventions, expected: list[float]
) -> None:
    assert estimator(ROLLOUTS, CONSTANTS, conventions).tolist() == expected


@pytest.mark.parametrize(
    ("deviation", "std"),
    # The deviations are 1 and -1; the sum of their squares is divided by 2 - 1 or by 2.
    [(Deviation.UNBIASED, math.sqrt(2)), (Deviation.BIASED, 1)],
)
def test_std_of_a_group_is_one_of_two_and_of_one_sample_0(deviation: Deviation, std: float) -> None:
    conventions = replace(ALL_TOKENS, deviation=deviation)
    found = advantages.group_normalised(ROLLOUTS, CONSTANTS, conventions)

    normalised = 1 / (std + 1e-6)
    assert found.tolist() == [-normalised] * 3 + [normalised] * 2 + [0]


def test_a_response_is_penalised_for_what_it_has_of_the_last_tokens_before_the_limit() -> None:
    """The last 4 tokens before a limit of 9 are penalised: by 2 if a response uses all of them."""
    penalties = advantages.overlong_penalties(np.array([3, 5, 6, 9, 12]), 9, CONSTANTS)

    assert penalties.tolist() == [0, 0, 0.5, 2, 2]


def test_reward_is_at_the_last_token_of_the_set() -> None:
    masked_at_the_end = replace(ROLLOUTS, mask=np.array([True, True, False, True, True, True]))
    free = replace(CONSTANTS, penalty=0.0)

    at_active = advantages.token_rewards(masked_at_the_end, free, TRAINED)
    at_last = advantages.token_rewards(masked_at_the_end, free, ALL_TOKENS)

    assert at_active.tolist() == [0, 1, 0, 0, 3, 5]
    assert at_last.tolist() == [0, 0, 1, 0, 3, 5]


@pytest.mark.parametrize(
    ("conventions", "mean", "variance"),
    [
        # The active tokens' numbers are 1, 3, 1, 1 and 2, with deviations of -0.6, 1.4, -0.6, -0.6
        # and 0.4.
        (EstimatorConventions(), 1.6, 3.2 / 4),
        (EstimatorConventions(lost_degrees_of_freedom=0), 1.6, 3.2 / 5),
        # With the masked token, the numbers are 1, 2, 3, 1, 1 and 2.
        (ALL_TOKENS, 10 / 6, (3 * (4 / 6) ** 2 + 2 * (2 / 6) ** 2 + (8 / 6) ** 2) / 5),
    ],
)
def test_whitening_counts_the_tokens_of_its_set(
    conventions: EstimatorConventions, mean: float, variance: float
) -> None:
    found = advantages.whitened(ROLLOUTS.values, ROLLOUTS, conventions)

    by_hand = (ROLLOUTS.values - mean) / math.sqrt(variance + 1e-8)
    assert found == pytest.approx(by_hand, rel=1e-14)


def test_no_tokens_to_count_are_whitened_to_0() -> None:
    nothing = replace(ROLLOUTS, mask=np.zeros(6, np.bool_))

    found = advantages.whitened(ROLLOUTS.values, nothing, EstimatorConventions())

    assert not found.any()


IRREGULAR = Rollouts(
    rewards=np.array([1.0, 4.0, 2.0, 3.0, 5.0, 8.0, 7.0]),
    groups=np.array([0, 0, 0, 0, 0, 1, 2]),
    trajectories=np.array([0, 1, 1, 1, 2, 3, 4]),
    rejected=np.array([False, False, False, False, True, False, False]),
    sample=np.array([0, 1, 2, 2, 3, 4, 5, 6]),
    mask=np.array([True, True, True, True, True, False, True, True]),
    values=np.zeros(8),
    divergences=np.zeros(8),
)
"""A prompt of five samples, and two prompts of one sample. Of the five samples, three are one
rollout, and the last is rejected."""

FIRST = np.array([0, 1, 2, 4, 5, 6, 7])
"""The first token of each sample."""


@pytest.mark.parametrize(
    ("conventions", "expected"),
    [
        # The mean of 1, 4, 2, 3 and 5 is 3.
        (EstimatorConventions(), [-2, 1, -1, 0, 2, 0, 0]),
        (EstimatorConventions(lone=Lone.REWARD), [-2, 1, -1, 0, 2, 8, 7]),
        # The rollout's second sample has two active tokens; its last sample has a reward of 3.
        (
            EstimatorConventions(compared=Compared.LONGEST_SAMPLES),
            [Fraction(-5, 3), *[Fraction(-2, 3)] * 3, Fraction(7, 3), 0, 0],
        ),
        (EstimatorConventions(compared=Compared.LAST_SAMPLES), [-2, 0, 0, 0, 2, 0, 0]),
        # The rewards are 1, 4, 2 and 3, first without the rejected one and then with it as 0.
        (
            EstimatorConventions(rejected=Rejected.EXCLUDED),
            [
                Fraction(-3, 2),
                Fraction(3, 2),
                Fraction(-1, 2),
                Fraction(1, 2),
                Fraction(5, 2),
                0,
                0,
            ],
        ),
        (EstimatorConventions(rejected=Rejected.ZERO), [-1, 2, 0, 1, -2, 0, 0]),
    ],
)
def test_rewards_are_compared_by_conventions(
    conventions: EstimatorConventions, expected: list[Fraction | int]
) -> None:
    found = advantages.group_centred(IRREGULAR, CONSTANTS, conventions)

    assert found[FIRST].tolist() == pytest.approx([float(one) for one in expected], rel=1e-15)


@pytest.mark.parametrize(
    ("estimator", "missing", "expected"),
    [
        # The mean of 1, 3 and 5 is 3. The second prompt has one reward, and the third none.
        (advantages.group_centred, Missing.EXCLUDED, [-2, 0, 0, 0, 2, 0, 0]),
        (advantages.leave_one_out, Missing.EXCLUDED, [-3, 0, 0, 0, 3, 0, 0]),
        # The mean of 1, 0, 0, 3 and 5 is 9/5; the rewards other than 1 are 0, 0, 3 and 5.
        (
            advantages.group_centred,
            Missing.ZERO,
            [*(Fraction(n, 5) for n in (-4, -9, -9, 6, 16)), 0, 0],
        ),
        (
            advantages.leave_one_out,
            Missing.ZERO,
            [*(Fraction(n, 4) for n in (-4, -9, -9, 6, 16)), 0, 0],
        ),
    ],
)
def test_samples_without_a_reward_are_left_out_or_have_one_of_0(
    estimator: Estimator, missing: Missing, expected: list[Fraction | int]
) -> None:
    rollouts = replace(IRREGULAR, rewards=np.array([1.0, nan, nan, 3.0, 5.0, 8.0, nan]))

    found = estimator(rollouts, CONSTANTS, EstimatorConventions(missing=missing))

    assert found[FIRST].tolist() == pytest.approx([float(one) for one in expected], rel=1e-15)


def exactly(rewards: list[Fraction]) -> tuple[Fraction, Fraction]:
    """The mean of numbers, and their variance with the divisor n - 1."""
    mean = sum(rewards, Fraction()) / len(rewards)
    squares = sum(((reward - mean) ** 2 for reward in rewards), Fraction())
    return mean, squares / max(len(rewards) - 1, 1)


@pytest.mark.parametrize("rewards", [[1, 2, 4], [7, 3, 3, 3], [0, 1, 1, 0], [10001, 10000, 10002]])
def test_statistics_leave_a_reward_out(rewards: list[int]) -> None:
    """Statistics are compared with exact fractions; only the square root is a float."""
    exact = [Fraction(reward) for reward in rewards]
    size = len(rewards)
    rollouts = Rollouts(
        rewards=np.array(rewards, np.float64),
        groups=np.zeros(size, np.int64),
        trajectories=np.arange(size),
        rejected=np.zeros(size, np.bool_),
        sample=np.arange(size),
        mask=np.ones(size, np.bool_),
        values=np.zeros(size),
        divergences=np.zeros(size),
    )
    free = EstimatorConventions(std_epsilon=0.0)
    expected = []
    for place, reward in enumerate(exact):
        mean, variance = exactly(exact[:place] + exact[place + 1 :])
        expected.append(float(reward - mean) / (math.sqrt(variance) if variance else 1.0))
    mean, _ = exactly(exact)

    others = advantages.others_normalised(rollouts, CONSTANTS, free)
    by_mean = advantages.mean_normalised(rollouts, CONSTANTS, free)

    assert others.tolist() == pytest.approx(expected, rel=1e-14)
    assert by_mean.tolist() == pytest.approx(
        [float((reward - mean) / mean) for reward in exact], rel=1e-12
    )


def test_advantages_divided_by_a_mean_of_0_are_0() -> None:
    nothing = replace(IRREGULAR, rewards=np.zeros(7))

    assert not advantages.mean_normalised(nothing, CONSTANTS, EstimatorConventions()).any()
