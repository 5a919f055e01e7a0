"""The exact reference, which checks the reference, against fractions worked out by hand."""

from fractions import Fraction
from itertools import product

import pytest

from conformance.corpus.cases import CORPUS, REJECTION
from reference import exact, weights
from reference.aggregation import (
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
    SampleUnit,
)
from reference.step import Sample, Step

STEP = Step.of(
    [
        Sample(prompt_length=2, loss_mask=[1, 0, 1], original_mask=[1, 1, 1], group=4, rollout=9),
        Sample(prompt_length=1, loss_mask=[1], group=4, rollout=9),
        Sample(prompt_length=1, loss_mask=[0, 0], original_mask=[1, 0], group=6, rollout=8),
        Sample(prompt_length=3, loss_mask=[0], group=7, rollout=7),
        Sample(prompt_length=1, loss_mask=[1, 1], group=6, rollout=6),
    ]
)
"""Samples of 2, 1, 0, 0 and 2 active tokens, which had 3, 1, 1, 0 and 2 before rejection."""

EXCLUDED = EmptyUnits.EXCLUDED
ORIGINAL = DenominatorMask.ORIGINAL
ROLLOUT = SampleUnit.ROLLOUT


@pytest.mark.parametrize(
    ("mode", "conventions", "denominators"),
    [
        (Mode.SAMPLE_MEAN, Conventions(), [5 * 2, 5 * 1, 5 * 2]),
        (Mode.SAMPLE_MEAN, Conventions(empty_units=EXCLUDED), [3 * 2, 3 * 1, 3 * 2]),
        (Mode.SAMPLE_MEAN, Conventions(denominator_mask=ORIGINAL), [5 * 3, 5 * 1, 5 * 2]),
        (
            Mode.SAMPLE_MEAN,
            Conventions(empty_units=EXCLUDED, denominator_mask=ORIGINAL),
            [4 * 3, 4 * 1, 4 * 2],
        ),
        (Mode.SAMPLE_MEAN, Conventions(sample_unit=ROLLOUT), [4 * 3, 4 * 3, 4 * 2]),
        (
            Mode.SAMPLE_MEAN,
            Conventions(sample_unit=ROLLOUT, empty_units=EXCLUDED),
            [2 * 3, 2 * 3, 2 * 2],
        ),
        (Mode.PROMPT_MEAN, Conventions(sample_unit=ROLLOUT), [3 * 3, 3 * 3, 3 * 2]),
        (Mode.PROMPT_MEAN, Conventions(empty_units=EXCLUDED), [2 * 3, 2 * 3, 2 * 2]),
        (Mode.PROMPT_MEAN, Conventions(denominator_mask=ORIGINAL), [3 * 4, 3 * 4, 3 * 3]),
        (Mode.TOKEN_MEAN, Conventions(), [5, 5, 5]),
        (Mode.TOKEN_MEAN, Conventions(denominator_mask=ORIGINAL), [7, 7, 7]),
        (Mode.CONSTANT, Conventions(), [10 * 5] * 3),
        (Mode.CONSTANT, Conventions(empty_units=EXCLUDED), [10 * 3] * 3),
        (Mode.CONSTANT, Conventions(empty_units=EXCLUDED, denominator_mask=ORIGINAL), [10 * 4] * 3),
        (Mode.CONSTANT, Conventions(sample_unit=ROLLOUT), [10 * 4] * 3),
    ],
)
def test_weights_worked_by_hand(
    mode: Mode, conventions: Conventions, denominators: list[int]
) -> None:
    aggregation = Aggregation(mode, 10 if mode is Mode.CONSTANT else None)
    first, second, last = (Fraction(1, denominator) for denominator in denominators)
    expected = [[first, 0, first], [second], [0, 0], [0], [last, last]]

    assert exact.token_weights(STEP, aggregation, conventions) == expected
    assert weights.token_weights(STEP, aggregation, conventions).tolist() == [
        float(weight) for sample in expected for weight in sample
    ]


def test_divisor_may_be_no_whole_number() -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)] * 3)

    assert exact.token_weights(step, Aggregation(Mode.CONSTANT, 0.5)) == [[Fraction(2, 3)]] * 3


@pytest.mark.parametrize(
    "conventions",
    [
        Conventions(sample_unit=unit, empty_units=empty, denominator_mask=mask)
        for unit, empty, mask in product(SampleUnit, EmptyUnits, DenominatorMask)
    ],
    ids=str,
)
def test_float_weights_of_the_corpus_are_the_exact_ones(conventions: Conventions) -> None:
    for case in (*CORPUS[:-1], *REJECTION):
        for step, mode in product(case.steps, Mode):
            aggregation = case.aggregation(mode)
            expected = exact.token_weights(step, aggregation, conventions)

            assert weights.token_weights(step, aggregation, conventions).tolist() == [
                float(weight) for sample in expected for weight in sample
            ]
