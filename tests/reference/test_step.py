"""What a step holds, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from reference.step import InvalidStepError, Sample, Step


def test_samples_are_laid_out_one_after_another() -> None:
    step = Step.of(
        [
            Sample(prompt_length=2, loss_mask=[1, 0, 1], group=5),
            Sample(prompt_length=4, loss_mask=np.array([False, True]), group=5),
        ]
    )

    assert step.mask.tolist() == [True, False, True, False, True]
    assert step.offsets.tolist() == [0, 3, 5]
    assert step.active_tokens.tolist() == [2, 1]
    assert step.rollouts.tolist() == [0, 1]
    assert len(step) == 2


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 2, 0], "a loss mask holds 2, but a token is active"),
        ([0.5], "a loss mask holds 0.5"),
        ([float("nan")], "a loss mask holds nan"),
        ([[1, 0]], "a loss mask has 2 dimensions"),
        ([], "response_lengths holds 0"),
    ],
)
def test_refuses_what_is_no_mask(mask: object, message: str) -> None:
    with pytest.raises(InvalidStepError, match=message):
        Step.of([Sample(prompt_length=1, loss_mask=mask, group=0)])  # type: ignore[arg-type]


def test_refuses_a_step_without_samples() -> None:
    with pytest.raises(InvalidStepError, match="a step has 0 samples"):
        Step.of([])


def test_refuses_a_mask_of_the_wrong_length() -> None:
    one = np.ones(1, np.int64)

    with pytest.raises(InvalidStepError, match="2 entries for 3 response tokens"):
        Step(
            prompt_lengths=one,
            response_lengths=3 * one,
            mask=np.ones(2, np.bool_),
            groups=one,
            rollouts=one,
        )


def test_rejection_takes_tokens_out_of_the_original_mask() -> None:
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1, 0, 0], original_mask=[1, 1, 0], group=0),
            Sample(prompt_length=1, loss_mask=[1, 1], group=1),
        ]
    )

    assert step.original_tokens.tolist() == [2, 2]
    assert step.active_tokens.tolist() == [1, 2]


def test_without_rejection_the_original_mask_is_the_mask() -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[1, 0], group=0)])

    assert step.original_mask is None
    assert step.original_tokens.tolist() == step.active_tokens.tolist()


@pytest.mark.parametrize(
    ("original", "message"),
    [
        ([1, 0, 0], "1 active tokens are not in the original masks"),
        ([1, 1], "2 entries for 3 response tokens"),
        ([1, 1, 2], "a loss mask holds 2"),
    ],
)
def test_refuses_an_original_mask_that_cannot_be(original: list[int], message: str) -> None:
    with pytest.raises(InvalidStepError, match=message):
        Step.of([Sample(prompt_length=1, loss_mask=[1, 1, 0], original_mask=original, group=0)])


def test_refuses_an_attribute_that_is_not_one_per_sample() -> None:
    one = np.ones(1, np.int64)

    with pytest.raises(InvalidStepError, match="groups has 2 entries for 1 samples"):
        Step(
            prompt_lengths=one,
            response_lengths=one,
            mask=np.ones(1, np.bool_),
            groups=np.ones(2, np.int64),
            rollouts=one,
        )


def test_refuses_a_prompt_without_tokens() -> None:
    with pytest.raises(InvalidStepError, match="prompt_lengths holds 0"):
        Step.of([Sample(prompt_length=0, loss_mask=[1], group=0)])


def test_refuses_rollouts_given_for_some_samples_only() -> None:
    samples = [
        Sample(prompt_length=1, loss_mask=[1], group=0, rollout=rollout) for rollout in (None, 3)
    ]

    with pytest.raises(InvalidStepError, match="give it for all or for none"):
        Step.of(samples)
