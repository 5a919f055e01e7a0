"""The contents of a step, and the inputs that it refuses."""

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


ONE = np.ones(1, np.int64)

WHOLE: dict[str, np.ndarray] = {
    "prompt_lengths": ONE,
    "response_lengths": ONE,
    "mask": np.ones(1, np.bool_),
    "groups": ONE,
    "rollouts": ONE,
}
"""A step of one token; each step that is refused differs from it in one field."""

NO_TOKEN = "but a prompt and a response have at least one token"
LEFT_OUT = "leave the sample out or mask its only token"
NO_MASK = "but a token is active (1) or not (0); put other weights into the losses"


def sample(mask: object = (1, 0), **fields: object) -> Sample:
    return Sample(**{"prompt_length": 1, "loss_mask": mask, "group": 0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "a step has 0 samples, but needs at least one; add a sample"),
        ([sample(prompt_length=0)], f"prompt_lengths holds 0, {NO_TOKEN}; {LEFT_OUT}"),
        ([sample(), sample([])], f"response_lengths holds 0, {NO_TOKEN}; {LEFT_OUT}"),
        (
            [sample([1, 1]), sample([1, 0], original_mask=[1, 1]), sample(original_mask=[0, 0])],
            "1 active tokens are not in the original masks, but rejection only removes"
            " tokens; set them in both",
        ),
        (
            [sample([1, 1, 0], original_mask=[1, 1])],
            "the loss masks have 2 entries for 3 response tokens; give one entry per response"
            " token",
        ),
        (
            [sample(rollout=1), sample()],
            "only some samples have a rollout; give it for all samples or for none",
        ),
        (
            [sample([[1]])],
            "a loss mask has 2 dimensions, but one response has one; give a flat list",
        ),
        ([sample([1, 3, 0, 2])], f"a loss mask holds 3, {NO_MASK}"),
        ([sample([0.5])], f"a loss mask holds 0.5, {NO_MASK}"),
        ([sample([float("nan")])], f"a loss mask holds nan, {NO_MASK}"),
        ([sample([1, 0], original_mask=[1, 2])], f"a loss mask holds 2, {NO_MASK}"),
    ],
)
def test_refusal_tells_value_rule_and_way_out(samples: list[Sample], message: str) -> None:
    with pytest.raises(InvalidStepError) as refused:
        Step.of(samples)

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(
            (field, [1, 1], f"{field} has 2 entries for 1 samples; give one per sample")
            for field in ("rollouts", "groups", "response_lengths")
        ),
        *(
            (
                field,
                [1, 1],
                "the loss masks have 2 entries for 1 response tokens; give one entry per response"
                " token",
            )
            for field in ("mask", "original_mask")
        ),
        ("mask", [-1], f"a loss mask holds -1, {NO_MASK}"),
    ],
)
def test_refusal_of_flat_fields_tells_value_rule_and_way_out(
    field: str, value: list[int], message: str
) -> None:
    with pytest.raises(InvalidStepError) as refused:
        Step(**{**WHOLE, field: np.array(value)})

    assert str(refused.value) == message


def test_masks_of_numbers_are_kept_as_truth_values_and_views_of_them_are_not_copied() -> None:
    mask = np.ones(1, np.bool_)
    step = Step(**{**WHOLE, "mask": mask, "original_mask": ONE})

    assert step.mask is mask
    assert step.original_mask.dtype == np.bool_


def test_samples_keep_what_they_are_given() -> None:
    step = Step.of(
        [
            sample([1, 0, 0], prompt_length=2, group=5, rollout=8, original_mask=[1, 0, 1]),
            sample([0, 1], prompt_length=7, group=3, rollout=8),
        ]
    )

    assert step.original_mask.tolist() == [True, False, True, False, True]
    assert step.prompt_lengths.tolist() == [2, 7]
    assert step.response_lengths.tolist() == [3, 2]
    assert step.groups.tolist() == [5, 3]
    assert step.rollouts.tolist() == [8, 8]
    assert [step.mask[response].tolist() for response in step.responses] == [
        [True, False, False],
        [False, True],
    ]
    assert {field.dtype for field in (step.prompt_lengths, step.groups, step.rollouts)} == {
        np.dtype(np.int64)
    }


def test_numbers_are_kept_in_the_same_width_whatever_they_came_in() -> None:
    """Lengths of 8 bits would overflow when summed."""
    numbers = {"prompt_length": np.int8(100), "group": np.int8(3), "rollout": np.int16(4)}
    step = Step.of([sample([1], **numbers), sample([1, 0], **numbers)])

    assert {
        field.dtype for field in (step.prompt_lengths, step.groups, step.rollouts, step.offsets)
    } == {np.dtype(np.int64)}
