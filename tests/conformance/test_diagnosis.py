"""The diagnosis of a wrong result: names, words and numbers."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Layout
from conformance.explain.diagnosis import likeliest
from conformance.findings.finding import Diagnosis
from reference.aggregation import Conventions, DenominatorMask, EmptyUnits, Mode
from reference.rounding import weight_bound
from tests.conformance.given import BY_SAMPLE, REJECTED, SLICED, Given
from tests.jobs import step_of

SAMPLES = np.repeat(np.arange(5), [3, 1, 2, 5, 3])

TWO = Given(layout=Layout(dp=2, micro_batches=2), forward_pass_of_token=BY_SAMPLE)
FOUR = Given(layout=Layout(dp=2, cp=2, micro_batches=2), forward_pass_of_token=SLICED)


def test_factor_is_given_as_a_fraction_with_its_size() -> None:
    diagnosis = replace(TWO, layout=Layout(dp=7)).diagnosis(TWO.weights / 7)

    assert diagnosis.name == "divided_by_dp"
    assert diagnosis.explanation == (
        "every weight is 1/7 of the expected one: an extra division by dp = 7"
    )
    assert diagnosis.numbers == {"ratio": pytest.approx(1 / 7), "dp": 7}


@pytest.mark.parametrize(
    ("divisor", "ratio"),
    [
        (999, "1/999"),
        (1000, "1/1000"),
        (1001, "0.000999001"),
        (1003, "0.000997009"),
        (1234.5, "0.0008100446"),
        (0.37, "100/37"),
    ],
)
def test_ratio_is_a_fraction_where_that_is_short(divisor: float, ratio: str) -> None:
    given = Given(mode=Mode.CONSTANT, divisor=divisor)
    diagnosis = given.diagnosis(given.weights / divisor)

    assert diagnosis.explanation == (
        f"every weight is {ratio} of the expected one: an extra division by divisor = {divisor:g}"
    )


@pytest.mark.parametrize("token", range(64))
def test_every_token_must_weigh_what_a_mistake_predicts(token: int) -> None:
    step = step_of([1] * 64)
    given = Given(steps=(step,), layout=Layout(cp=2))
    observed = given.weights * 2
    observed[token] *= 1.5
    diagnosis = given.judged(observed).diagnosis

    assert diagnosis.name == "unexplained"


@pytest.mark.parametrize(
    ("mode", "right", "counted", "what"),
    [
        (Mode.TOKEN_MEAN, 10, 17, "tokens"),
        (Mode.SAMPLE_MEAN, 5, 17, "samples"),
        (Mode.PROMPT_MEAN, 3, 17, "prompts"),
    ],
)
def test_count_that_explains_a_factor_is_inferred(
    mode: Mode, right: int, counted: int, what: str
) -> None:
    given = Given(mode=mode)
    diagnosis = given.diagnosis(given.weights * right / counted)

    assert diagnosis.name == f"{what}_miscounted"
    assert diagnosis.explanation == f"{counted} {what} are counted instead of {right}"
    assert diagnosis.numbers == {"counted": counted, "expected": right}


def test_inferred_count_is_whole_within_the_bound() -> None:
    bound = weight_bound("float32")
    within, beyond = (
        TWO.diagnosis(TWO.weights * 10 / (17 * (1 + off * bound))) for off in (1.9, 2.9)
    )

    assert within.name == "tokens_miscounted"
    assert beyond.name == "unexplained"


def test_another_divisor_is_inferred() -> None:
    given = Given(mode=Mode.CONSTANT)
    diagnosis = given.diagnosis(given.weights * 40 / 12.5)

    assert diagnosis.name == "other_divisor"
    assert diagnosis.explanation == "the sum is divided by L = 12.5 instead of 40"
    assert diagnosis.numbers == {"divisor": pytest.approx(12.5), "expected_divisor": 40}


def test_count_is_of_the_original_mask_where_that_is_declared() -> None:
    """Ten of twelve tokens are left after rejection; five of six samples had tokens before it."""
    declared = Conventions(
        denominator_mask=DenominatorMask.ORIGINAL, empty_units=EmptyUnits.EXCLUDED
    )
    tokens = Given(steps=(REJECTED,), conventions=declared)
    samples = replace(tokens, mode=Mode.SAMPLE_MEAN)

    assert tokens.diagnosis(tokens.weights * 12 / 23).explanation == (
        "23 tokens are counted instead of 12"
    )
    assert samples.diagnosis(samples.weights * 5 / 17).explanation == (
        "17 samples are counted instead of 5"
    )
    assert tokens.diagnosis(tokens.weights * 12 / 13).name == "empty_samples_counted"


@pytest.mark.parametrize(
    ("given", "part", "pattern"),
    [
        (FOUR, (SLICED[2:] >= 0).any(axis=0), "one ratio per rank"),
        (FOUR, (SLICED[1::2] >= 0).any(axis=0), "one ratio per context-parallel slice"),
        (FOUR, SLICED[2] >= 0, "one ratio per context-parallel slice"),
        (TWO, SAMPLES == 3, "one ratio per micro-batch"),
        (TWO, SAMPLES % 3 == 0, "one ratio per sample"),
        (Given(), SAMPLES >= 4, "one ratio per group"),
        (Given(), SAMPLES == 1, "one ratio per sample"),
        (TWO, np.arange(14) == 7, "different within samples"),
    ],
)
def test_pattern_of_what_is_unexplained_is_of_the_coarsest_parts(
    given: Given, part: np.ndarray, pattern: str
) -> None:
    diagnosis = given.diagnosis(given.weights * np.where(part, 3.7, 1.3))

    assert diagnosis.name == "unexplained"
    assert diagnosis.explanation == (
        f"weights are 1.3 to 3.7 times the expected ones, {pattern};"
        " a token is divided by 2.702703 instead of 10"
    )
    assert diagnosis.numbers == pytest.approx(
        {
            "lowest_ratio": 1.3,
            "highest_ratio": 3.7,
            "denominator": 10 / 3.7,
            "expected_denominator": 10,
        }
    )


def test_ratios_of_slices_are_of_one_rank_each() -> None:
    """Three data-parallel ranks have two slices each; one slice of the first rank differs."""
    ranks = np.array([0, 1, 0, 0, 2, 2, 2, 3, 2, 3, 2, 4, 5, 4])
    forward_pass_of_token = np.where(ranks == np.arange(6)[:, None], 0, -1).astype(np.int32)
    given = Given(layout=Layout(dp=3, cp=2), forward_pass_of_token=forward_pass_of_token)
    diagnosis = given.diagnosis(given.weights * np.where(ranks == 1, 3.7, 1.3))

    assert "one ratio per context-parallel slice" in diagnosis.explanation


def test_ratios_are_the_same_within_the_bound() -> None:
    """All weights are 13,700 times too large; one of them also differs by about the bound."""
    bound = weight_bound("float32")
    within, beyond = (
        TWO.diagnosis(TWO.weights * 1.37e4 * (1 + off * bound * (np.arange(14) == 7))).explanation
        for off in (1.9, 2.9)
    )

    assert within.startswith("weights are 13700 times the expected ones, the same for all tokens")
    assert "different within samples" in beyond


@pytest.mark.parametrize(("off", "pattern"), [(1.9, "micro-batch"), (2.9, "different within")])
def test_ratios_of_a_part_are_the_same_within_the_bound(off: float, pattern: str) -> None:
    bound = weight_bound("float32")
    ratios = np.where(SAMPLES == 3, 3.7e3, 1.3) + 3.7e3 * off * bound * (np.arange(14) == 7)

    assert pattern in TWO.diagnosis(TWO.weights * ratios).explanation


def test_common_ratio_that_no_count_explains_is_given() -> None:
    diagnosis = TWO.diagnosis(TWO.weights * 10 / 16.5)

    assert diagnosis.explanation == (
        "weights are 0.6060606 times the expected ones, the same for all tokens;"
        " a token is divided by 16.5 instead of 10"
    )


def test_weights_of_which_some_are_lost_and_others_wrong_are_unexplained() -> None:
    diagnosis = TWO.diagnosis(TWO.weights * np.where(SAMPLES == 3, 0, 1.37))

    assert diagnosis.name == "unexplained"
    assert diagnosis.explanation == (
        "weights are 0 to 1.37 times the expected ones, one ratio per micro-batch;"
        " some weights are 0"
    )
    assert diagnosis.numbers == pytest.approx({"lowest_ratio": 0, "highest_ratio": 1.37})


def test_token_counts_as_explained_up_to_the_bound() -> None:
    bound = weight_bound("float32")
    given = replace(TWO, layout=Layout(dp=7))
    within, beyond = (
        given.diagnosis(given.weights / 7 * (1 + off * bound)).name for off in (0.9, 1.1)
    )

    assert within == "divided_by_dp"
    assert beyond != "divided_by_dp"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_counted(value: float) -> None:
    diagnosis = TWO.diagnosis(np.where(SAMPLES == 4, value, TWO.weights))

    assert diagnosis == Diagnosis(
        name="not_finite",
        explanation="3 tokens weigh NaN or infinity, as after a division by 0",
        numbers={"tokens": 3},
    )


def test_weights_of_inactive_tokens_are_counted() -> None:
    leaking = TWO.weights
    leaking[[2, 4]] = -0.5, 0.25
    diagnosis = TWO.diagnosis(leaking)

    assert diagnosis == Diagnosis(
        name="inactive_tokens_weigh",
        explanation="2 masked tokens have a weight",
        numbers={"tokens": 2, "largest": 0.5},
    )


@pytest.mark.parametrize(
    ("likelier", "other"),
    [
        ("divided_by_dp", "other_divisor"),
        ("divided_by_dp", "tokens_miscounted"),
        ("other_divisor", "nothing_reported"),
        ("samples_miscounted", "unexplained"),
    ],
)
def test_known_mistake_is_likelier_than_an_inferred_count_and_that_than_none(
    likelier: str, other: str
) -> None:
    of_terms = [
        ("policy_loss", Diagnosis(name=other, explanation="whatever")),
        ("entropy", Diagnosis(name=likelier, explanation="this")),
    ]
    expected = Diagnosis(name=likelier, explanation="entropy: this")

    assert likeliest(of_terms) == likeliest(reversed(of_terms)) == expected
