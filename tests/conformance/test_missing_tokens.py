"""Tokens that were lost or trained twice, and their diagnoses."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Layout, Option
from conformance.findings.verdict import Verdict
from reference.aggregation import Conventions, DenominatorMask, Mode
from reference.step import Sample, Step
from tests.conformance.given import BY_SAMPLE, SCATTERED, SLICED, UNEVEN, Given
from tests.jobs import step_of

SAMPLES = np.repeat(np.arange(5), [3, 1, 2, 5, 3])

TWO = Given(layout=Layout(dp=2, micro_batches=2), forward_pass_of_token=BY_SAMPLE)
FOUR = Given(layout=Layout(dp=2, cp=2, micro_batches=2), forward_pass_of_token=SLICED)

FIRST_OF_FOUR = np.arange(14) == 7

OF_OTHER_RANKS = (
    "those of other data-parallel ranks were not added; or it is not_reduced_over_ranks,"
    " micro_batches_lost, samples_lost"
)


def without(given: Given, lost: np.ndarray) -> np.ndarray:
    return np.where(lost, 0, given.weights)


@pytest.mark.parametrize(
    ("given", "lost", "name", "count", "words"),
    [
        (TWO, BY_SAMPLE[0] < 0, "not_reduced_over_dp", "7 active tokens of 2", OF_OTHER_RANKS),
        (TWO, BY_SAMPLE[1] < 0, "not_reduced_over_dp", "3 active tokens of 2", OF_OTHER_RANKS),
        (
            # The second context-parallel ranks have tokens 1, 3, 9, 10, 12, 13, but 10 is masked.
            FOUR,
            (SLICED[[0, 2]] < 0).all(axis=0),
            "not_reduced_over_cp",
            "5 active tokens of 4",
            "those of other context-parallel ranks were not added; or it is tokens_lost",
        ),
        (
            FOUR,
            SLICED[1] < 0,
            "not_reduced_over_ranks",
            "8 active tokens of 3",
            "those of all other ranks were not added; or it is tokens_lost",
        ),
        (
            TWO,
            SAMPLES == 3,
            "micro_batches_lost",
            "4 active tokens of 1",
            "those of whole micro-batches; or it is samples_lost",
        ),
        (TWO, SAMPLES == 1, "samples_lost", "1 active tokens of 1", "those of whole samples"),
        (TWO, FIRST_OF_FOUR, "tokens_lost", "1 active tokens of 1", "their gradient was lost"),
    ],
)
def test_what_was_lost_is_named_after_the_largest_part_of_which_nothing_is_left(
    given: Given, lost: np.ndarray, name: str, count: str, words: str
) -> None:
    diagnosis = given.diagnosis(without(given, lost))

    tokens, samples = (int(number) for number in count.split(" active tokens of "))
    assert diagnosis.name == name
    assert diagnosis.explanation == (
        f"{count} samples weigh nothing, all others are right: {words}"
    )
    assert diagnosis.numbers == {"tokens": tokens, "samples": samples}


OF_THREE = step_of([1], [1, 1], [1])
CHANGED = replace(OF_THREE, token_names=np.arange(4), sample_names=np.arange(3))
"""`OF_THREE` with names of tokens and samples, which a step has after a law has changed it."""


@pytest.mark.parametrize("step", [OF_THREE, CHANGED], ids=["of_case", "changed"])
@pytest.mark.parametrize("mode", [Mode.TOKEN_MEAN, Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN])
def test_sample_that_is_lost_before_anything_is_counted_is_named(mode: Mode, step: Step) -> None:
    """The second of three samples is lost; the others weigh as much as in a step of two."""
    whole, rest = Given(steps=(step,), mode=mode), step_of([1], [1])
    given = replace(whole, forward_pass_of_token=np.array([[0, -1, -1, 0]], np.int32))
    first, last = Given(steps=(rest,), mode=mode).weights
    diagnosis = given.diagnosis(np.array([first, 0, 0, last]))

    assert diagnosis.name == "samples_dropped"
    assert diagnosis.explanation == (
        "2 active tokens of 1 samples weigh nothing, and all others are right for a step without"
        " these samples"
    )


def test_dropped_sample_whose_rejected_tokens_count_is_named_by_what_is_left_of_the_count() -> None:
    """Denominators count seven tokens before rejection, one of which is in the last sample.

    Without the last sample each active token weighs 1/6 instead of 1/7.
    """
    masks = [([1, 1, 0], [1, 1, 1]), ([1], [1]), ([1, 1], [1, 1]), ([0], [1])]
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=mask, original_mask=before, group=0)
            for mask, before in masks
        ]
    )
    given = Given(
        steps=(step,),
        conventions=Conventions(denominator_mask=DenominatorMask.ORIGINAL),
        forward_pass_of_token=np.array([[0, 0, 0, 0, 0, 0, -1]], np.int32),
    )
    diagnosis = given.diagnosis(step.mask / 6)

    assert diagnosis.name == "samples_dropped"
    assert diagnosis.explanation.startswith(
        "1 of 4 samples have no active token and were never trained, and all others are right for"
        " a step without these"
    )
    assert given.diagnosis(step.mask / 5).name == "modified_mask_counted"


def test_masked_ends_of_samples_that_nobody_held_are_no_dropped_samples() -> None:
    """Each sample's last, masked token is trimmed; the weights are half of the right ones."""
    given = Given(
        steps=(step_of([1, 0], [1, 1, 0]),),
        forward_pass_of_token=np.array([[0, -1, 0, 0, -1]], np.int32),
    )

    assert given.diagnosis(given.weights / 2).name != "samples_dropped"


def test_rank_without_weights_beside_one_that_has_them_all_is_no_term_without_gradient() -> None:
    """The one active token is on the second context-parallel rank."""
    one = step_of([0, 1])
    given = Given(
        steps=(one,),
        layout=Layout(cp=2),
        forward_pass_of_token=np.array([[0, -1], [-1, 0]], dtype=np.int32),
    )
    diagnosis = given.diagnosis(np.zeros(2), given.weights)

    assert diagnosis.name == "not_reduced_over_cp"
    assert diagnosis.explanation == (
        "1 active tokens of 1 samples weigh nothing, no others are active: those of other"
        " context-parallel ranks were not added; or it is not_reduced_over_ranks"
    )


def test_where_nothing_is_left_no_others_are_said_to_be_right() -> None:
    """The step's only active token weighs nothing, so no active token is left to be right."""
    diagnosis = Given(steps=(step_of([1], [0]),)).diagnosis(np.zeros(2))

    assert diagnosis.name == "term_without_gradient"
    assert diagnosis.explanation.startswith(
        "the term reaches no gradient: all 1 active tokens weigh nothing"
    )
    assert diagnosis.numbers == {"tokens": 1}


OVERLAPPING = replace(
    TWO, layout=Layout(dp=2, micro_batches=2, options=(Option.OVERLAP_GRAD_REDUCE,))
)


@pytest.mark.parametrize("forward_pass_of_token", [BY_SAMPLE, SCATTERED])
def test_last_micro_batch_that_an_overlapping_reduction_misses_is_named(
    forward_pass_of_token: np.ndarray,
) -> None:
    """The first rank's last micro-batch has no active token, or had its gradient reduced."""
    given = replace(OVERLAPPING, forward_pass_of_token=forward_pass_of_token)
    diagnosis = given.diagnosis(without(given, SAMPLES == 4))

    assert diagnosis.name == "reduced_before_the_last_micro_batch"
    assert diagnosis.explanation == (
        "3 active tokens of 1 samples weigh nothing, all others are right: those of the last"
        " micro-batches of ranks, as if the overlapping reduction of gradients had begun before"
        " them; or it is micro_batches_lost, samples_lost"
    )
    assert diagnosis.also == ["micro_batches_lost", "samples_lost"]


@pytest.mark.parametrize(("given", "sample"), [(TWO, 4), (OVERLAPPING, 3)])
def test_no_reduction_was_too_early_without_overlap_or_if_a_later_micro_batch_is_left(
    given: Given, sample: int
) -> None:
    diagnosis = given.diagnosis(without(given, sample == SAMPLES))

    assert diagnosis.name == "micro_batches_lost"


UNHELD = replace(TWO, forward_pass_of_token=np.where(SAMPLES == 4, -1, BY_SAMPLE))
"""`TWO`, but no rank holds the last sample."""


def test_tokens_that_no_rank_held_are_named() -> None:
    diagnosis = UNHELD.diagnosis(without(UNHELD, SAMPLES == 4))

    assert diagnosis.name == "samples_dropped"
    assert diagnosis.explanation == (
        "3 active tokens of 1 samples weigh nothing, all others are right: no rank ever held them"
        " in training"
    )


def test_tokens_that_a_rank_held_are_not_said_to_be_untrained() -> None:
    diagnosis = UNHELD.diagnosis(without(UNHELD, SAMPLES >= 3))

    assert diagnosis.explanation == "3 active tokens of 1 samples were never trained"


def test_tokens_are_not_said_to_be_lost_where_the_others_are_wrong_too() -> None:
    diagnosis = TWO.diagnosis(1.37 * without(TWO, SAMPLES == 3))

    assert diagnosis.name == "unexplained"


def test_sample_that_came_twice_is_named() -> None:
    diagnosis = TWO.diagnosis(np.where(SAMPLES == 4, 2, 1) * TWO.weights)

    assert diagnosis.name == "samples_repeated"
    assert diagnosis.explanation == "3 active tokens of 1 samples weigh twice as much"
    assert diagnosis.numbers == {"tokens": 3, "samples": 1}


def test_samples_that_came_twice_and_are_counted_are_named() -> None:
    """Two of five samples came twice, so seven samples are counted."""
    given = replace(TWO, mode=Mode.SAMPLE_MEAN)
    diagnosis = given.diagnosis(np.where(SAMPLES >= 3, 2, 1) * given.weights * 5 / 7)

    assert diagnosis.name == "samples_repeated"
    assert diagnosis.explanation == (
        "7 active tokens of 2 samples weigh twice as much and are counted so"
    )


def test_sample_that_came_twice_among_three_and_is_counted_is_named() -> None:
    """The repeated sample weighs 2 · 3/4 of what is right, and the others weigh 3/4."""
    given = Given(mode=Mode.SAMPLE_MEAN, steps=(step_of([1], [1], [1], groups=range(3)),))
    diagnosis = given.diagnosis(np.array([2, 1, 1]) / 4)

    assert diagnosis.name == "samples_repeated"
    assert diagnosis.explanation.endswith("weigh twice as much and are counted so")


@pytest.mark.parametrize("factor", [2.1, 1.9])
def test_sample_that_weighs_about_twice_as_much_did_not_come_twice(factor: float) -> None:
    assert TWO.diagnosis(np.where(SAMPLES == 4, factor, 1) * TWO.weights).name == "unexplained"


def test_tokens_within_a_sample_did_not_come_twice() -> None:
    assert TWO.diagnosis(np.where(np.arange(14) == 7, 2, 1) * TWO.weights).name == "unexplained"


def test_uneven_micro_batches_are_told_apart() -> None:
    given = Given(layout=Layout(dp=2, micro_batches="uneven"), forward_pass_of_token=UNEVEN)

    assert given.judged(given.weights).verdict is Verdict.CONFORMS
    assert given.diagnosis(without(given, SAMPLES == 1)).name == "micro_batches_lost"


def test_step_of_one_sample_is_not_lost_as_a_sample() -> None:
    """If the only sample is lost, no token is left that could be right."""
    one = step_of([1, 1])

    assert Given(steps=(one,)).diagnosis(np.zeros(2)).name == "term_without_gradient"


def test_term_that_reaches_no_gradient_is_called_that_and_nothing_lost() -> None:
    diagnosis = FOUR.diagnosis(np.zeros(14))

    assert diagnosis.name == "term_without_gradient"
    assert diagnosis.also == []
