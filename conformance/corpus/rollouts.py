"""Realistic batches of rollouts, for advantages that a framework computes from rewards.

Samples of a prompt are missing, a rollout has several samples, or rejection sampling has removed
samples. Rewards are missing, all equal, large, or not exact in binary. No reward is negative, since
MaxRL divides by the mean of the rewards.
"""

from __future__ import annotations

from itertools import cycle
from math import nan
from typing import TYPE_CHECKING

from conformance.corpus.case import Case
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

ALMOST = 26762 / 32768
"""In float32 the mean of three such rewards is exact, but the mean of their squares is not. The
mean of squares minus the square of the mean is therefore 9e-8, although the variance is 0."""

FAN_OUT = "111 11 101 000 1111 11 1 111 011 11 1 11111"
"""Masks of six rollouts with 1, 3, 1, 2, 1 and 4 samples. One sample has no active token."""

OF_ROLLOUTS = "011123345555"


def _step(
    masks: str, rewards: Sequence[float], *, groups: str, rollouts: str | None = None
) -> Step:
    """A step from masks separated by spaces, with a digit for the group and rollout of each.

    An ``x`` in a mask is a token that rejection sampling removed. Without rollouts, each sample is
    its own rollout.
    """
    columns = zip(masks.split(), rewards, groups, cycle((3, 5, 2, 4)), strict=False)
    return Step.of(
        [
            Sample(
                prompt_length=prompt,
                loss_mask=[token == "1" for token in mask],
                original_mask=[token in "1x" for token in mask] if "x" in masks else None,
                group=int(group),
                rollout=index if rollouts is None else int(rollouts[index]),
                reward=reward,
            )
            for index, (mask, reward, group, prompt) in enumerate(columns)
        ]
    )


ROLLOUTS = (
    Case(
        name="missing_siblings",
        catches="groups cut out of the batch by a fixed size: 4, 3, 4 and 3 samples of 4",
        source="AReaL pull request 1454: failed or filtered samples leave smaller groups",
        steps=(
            _step(
                "11 1 111 1101 11111 1 11 1 111 11 01 1111 1 111",
                [0.1, 0.7, 1, 0.3, 0.9, 0.2, 0.6, 1, 0, 0.4, 0.8, 0.5, 1.3, 0.1],
                groups="00001112222333",
            ),
        ),
    ),
    Case(
        name="lone_samples",
        catches="a standard deviation of one reward: NaN, 0 or 1",
        source="AReaL pull request 1454: a group of one has no peer",
        steps=(
            _step(
                "111 11 1 1101 11111 1 11 1 111 11 01 1111",
                [0.7, 0.1, 1, 0.4, 0.2, 0.9, 0.3, 0, 0.6, 0.8, 0.5, 1.1],
                groups="011112333445",
            ),
        ),
    ),
    Case(
        name="groups_of_one",
        catches="a batch without any group: as many prompts as samples",
        source="ROLL's docs for REINFORCE and TOPR, with one sample for each prompt",
        steps=(
            _step(
                "111 11 1 1101 11111 11 111 01",
                [0.7, 0.1, 1, 0.4, 0.2, 0.9, 0.3, 0.5],
                groups="01234567",
            ),
        ),
    ),
    Case(
        name="several_samples",
        catches="statistics over samples where a rollout of several samples counts once",
        source="miles pull request 2369: rewards are normalised over rollouts",
        steps=(
            _step(
                FAN_OUT,
                [1, 0.2, 0.2, 0.2, 0.6, 0.3, 0.3, 0.9, 0.1, 0.1, 0.1, 0.1],
                groups="000001111111",
                rollouts=OF_ROLLOUTS,
            ),
        ),
    ),
    Case(
        name="step_rewards",
        catches="the reward of the wrong sample of a rollout whose samples have one each",
        source="miles pull request 2369: the sample with most tokens; SkyRL: the last step",
        steps=(
            _step(
                FAN_OUT,
                [1, 0.2, 0.5, 0.7, 0.6, 0.3, 0.8, 0.9, 0.1, 0.4, 0.15, 0.55],
                groups="000001111111",
                rollouts=OF_ROLLOUTS,
            ),
        ),
    ),
    Case(
        name="masked_ends",
        catches="a reward lost with the last token of a response, which is not the policy's own",
        source="verl pull request 2337: tokens that the policy did not write are skipped",
        steps=(
            _step(
                "11 110 111 1101 11100 1 11 1 110 11 01 111100",
                [0.1, 0.7, 1, 0.3, 0.9, 0.2, 0.6, 0.4, 0, 1.2, 0.8, 0.5],
                groups="000011112222",
            ),
        ),
    ),
    Case(
        name="interleaved_rewards",
        catches="groups assumed adjacent when rewards are compared",
        source="review of SkyRL pull request 1718: boundaries with gaps",
        steps=(
            _step(
                "11 1 111 1101 11111 1 11 1 111 11 01 1111",
                [0.1, 0.7, 1, 0.3, 0.9, 0.2, 0.6, 0.4, 0, 1.2, 0.8, 0.5],
                groups="012301230123",
            ),
        ),
    ),
    Case(
        name="rejected_siblings",
        catches="rewards of rejected samples in the baseline, or left out of it",
        source="verl pull requests 6362 and 6375: rejected samples and their rewards",
        steps=(
            _step(
                "111 xx 1x1 11 x 1111 xxx 11 11 xxx x xx",
                [0.1, 0.7, 1, 0.3, 0.9, 0.2, 0.6, 0.4, 0.5, 1.2, 0.8, 0.3],
                groups="000011112222",
            ),
        ),
    ),
    Case(
        name="equal_rewards",
        catches="division by the standard deviation of rewards that are all equal, except one",
        source="NeMo-RL pull request 4158: rewards of y, x, x and x",
        steps=(
            _step(
                "11 1 111 1101 11111 1 11 1 111 11 01 1111 1 111 11 1",
                [*[0.75] * 4, 1, *[ALMOST] * 3, 0, 0, 0, 1, 1, 0, 1, 1],
                groups="0000111122223333",
            ),
        ),
    ),
    Case(
        name="missing_rewards",
        catches="a reward that no function gave: counted as 0, trained on, or NaN for its group",
        source="TRL pull request 5902: functions return None for samples that they cannot score",
        steps=(
            _step(
                "11 1 111 1111 11111 1 11 1 111 11 1 1111 1 111 11 1",
                [0.1, nan, 1, 0.3, 0.9, nan, nan, 0.4, nan, nan, nan, 0.5, nan, nan, nan, nan],
                groups="0000111122223333",
            ),
        ),
    ),
    Case(
        name="large_rewards",
        catches="a variance computed as the mean of squares minus the square of the mean",
        source="NeMo-RL pull request 4158: float32 loses the difference",
        steps=(
            _step(
                "11 1 111 1101 11111 1 11 1 111 11 01 1111",
                [1e4 + more for more in (0, 2, 0.5, 1, 0.25, 3, 1, 0, 2.5, 0, 0.75, 4)],
                groups="000011112222",
            ),
        ),
    ),
)
"""Cases that prescribe the rewards of their samples."""
