"""Weights against exact arithmetic, and against examples worked by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.corpus.strategies import aggregations, conventions, steps
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

FOUR_MODES = [Aggregation(mode, 4 if mode is Mode.CONSTANT else None) for mode in Mode]

STEP = Step.of(
    [
        Sample(prompt_length=2, loss_mask=[1, 1, 0, 1], group=7),
        Sample(prompt_length=1, loss_mask=[1], group=7),
        Sample(prompt_length=3, loss_mask=[0, 0], group=3),
        Sample(prompt_length=1, loss_mask=[1, 1], group=3),
    ]
)

MANY = settings(max_examples=10_000 if settings.get_current_profile_name() == "full" else 500)


@MANY
@given(steps(max_samples=8, max_response=8), aggregations(), conventions())
def test_weights_are_the_correctly_rounded_exact_ones(
    step: Step, aggregation: Aggregation, chosen: Conventions
) -> None:
    rounded = [
        float(weight)
        for sample in exact.token_weights(step, aggregation, chosen)
        for weight in sample
    ]

    assert weights.token_weights(step, aggregation, chosen).tolist() == rounded


@MANY
@given(
    steps(max_samples=8, max_response=8),
    st.integers(0, 2**32 - 1),
    aggregations(),
    conventions(),
    st.sampled_from(DenominatorMask),
)
def test_weights_after_rejection_are_the_correctly_rounded_exact_ones(
    step: Step, seed: int, aggregation: Aggregation, chosen: Conventions, counted: DenominatorMask
) -> None:
    kept = np.random.default_rng(seed).random(len(step.mask)) < 0.6
    rejected = replace(step, mask=step.mask & kept, original_mask=step.mask)
    conventions = replace(chosen, denominator_mask=counted)
    rounded = [
        float(weight)
        for sample in exact.token_weights(rejected, aggregation, conventions)
        for weight in sample
    ]

    assert weights.token_weights(rejected, aggregation, conventions).tolist() == rounded


def test_denominators_are_of_the_mask_that_is_declared() -> None:
    """Two of three tokens remain in the first sample, none of two in the second."""
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1, 0, 1], original_mask=[1, 1, 1], group=0),
            Sample(prompt_length=1, loss_mask=[0, 0], original_mask=[1, 1], group=1),
            Sample(prompt_length=1, loss_mask=[1], group=2),
        ]
    )
    original = Conventions(denominator_mask=DenominatorMask.ORIGINAL)
    mean, per_token = Aggregation(Mode.SAMPLE_MEAN), Aggregation(Mode.TOKEN_MEAN)

    assert weights.token_weights(step, mean).tolist() == [1 / 6, 0, 1 / 6, 0, 0, 1 / 3]
    assert weights.token_weights(step, mean, original).tolist() == [1 / 9, 0, 1 / 9, 0, 0, 1 / 3]
    assert weights.sample_weights(step, per_token).max() == 1 / 3
    assert weights.sample_weights(step, per_token, original).max() == 1 / 6


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # N = 4, M_i = 3, 1, 0, 2; P = 2, M_g = 4, 2; M = 6; L = 4
        (Mode.SAMPLE_MEAN, [1 / 12, 1 / 4, 0, 1 / 8]),
        (Mode.PROMPT_MEAN, [1 / 8, 1 / 8, 1 / 4, 1 / 4]),
        (Mode.TOKEN_MEAN, [1 / 6] * 4),
        (Mode.CONSTANT, [1 / 16, 1 / 16, 0, 1 / 16]),
    ],
)
def test_weight_of_an_active_token_worked_by_hand(mode: Mode, expected: list[float]) -> None:
    aggregation = Aggregation(mode, 4 if mode is Mode.CONSTANT else None)

    assert weights.sample_weights(STEP, aggregation).tolist() == expected


def test_worked_example_of_miles_1328() -> None:
    """One sample, x = [1, 2, 3], all active: 6 / 4 with L = 4, and 2 as a token mean."""
    step = Step.of([Sample(prompt_length=1, loss_mask=[1, 1, 1], group=0)])
    losses = np.array([1.0, 2.0, 3.0])

    assert weights.token_weights(step, Aggregation(Mode.CONSTANT, 4)) @ losses == 1.5
    assert weights.token_weights(step, Aggregation(Mode.SAMPLE_MEAN)) @ losses == pytest.approx(2)


@pytest.mark.parametrize("aggregation", FOUR_MODES, ids=lambda a: a.mode)
def test_inactive_tokens_weigh_nothing(aggregation: Aggregation) -> None:
    assert not weights.token_weights(STEP, aggregation)[~STEP.mask].any()


@pytest.mark.parametrize("aggregation", FOUR_MODES, ids=lambda a: a.mode)
def test_step_without_active_tokens_weighs_nothing(aggregation: Aggregation) -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[0, 0], group=0)] * 2)

    assert not weights.sample_weights(step, aggregation).any()


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_means_coincide_where_lengths_are_equal(groups: int, size: int, length: int) -> None:
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1] * length, group=group)
            for group in range(groups)
            for _ in range(size)
        ]
    )
    means = [
        weights.token_weights(step, Aggregation(mode)).tolist()
        for mode in (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)
    ]

    assert means[0] == means[1] == means[2]


def test_conventions_change_what_counts_as_one() -> None:
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1], group=0, rollout=0),
            Sample(prompt_length=1, loss_mask=[1, 1, 1], group=0, rollout=0),
            Sample(prompt_length=1, loss_mask=[0], group=1, rollout=1),
        ]
    )
    by_rollout = Conventions(sample_unit=SampleUnit.ROLLOUT)
    without_empty = Conventions(empty_units=EmptyUnits.EXCLUDED)
    mean = Aggregation(Mode.SAMPLE_MEAN)

    assert weights.sample_weights(step, mean).tolist() == [1 / 3, 1 / 9, 0]
    assert weights.sample_weights(step, mean, by_rollout).tolist() == [1 / 8, 1 / 8, 0]
    assert weights.sample_weights(step, mean, without_empty).tolist() == [1 / 2, 1 / 6, 0]


@MANY
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 99), st.data())
def test_a_router_loss_per_token_is_a_sum_of_shares_over_counted_tokens(
    dp: int, slices: int, micro_batches: int, counted: int, data: st.DataObject
) -> None:
    """A position has 1 / (slices · positions) of its micro-batch's mean, times the positions."""
    sizes = st.lists(st.integers(1, 9), min_size=micro_batches, max_size=micro_batches)
    positions = data.draw(st.lists(sizes, min_size=dp * slices, max_size=dp * slices))
    total = Fraction(0)
    for of_rank in positions:
        for held in of_rank:
            total += sum(Fraction(1, slices * held) * held for _ in range(held))

    found = weights.router_coefficient(np.array(positions), slices, counted)
    assert found == pytest.approx(float(total / counted), rel=1e-15)


@MANY
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.data())
def test_a_router_loss_is_a_mean_over_micro_batches_and_ranks(
    dp: int, slices: int, micro_batches: int, data: st.DataObject
) -> None:
    """DDP averages over dp · slices ranks, the schedule multiplies by slices / micro-batches."""
    held = data.draw(st.integers(1, 9))
    of_rank = sum(Fraction(1, slices * held) for _ in range(held)) * Fraction(slices, micro_batches)
    ranks = dp * slices
    total = sum(of_rank * micro_batches for _ in range(ranks)) / ranks

    assert weights.router_coefficient(np.array([held]), slices) == total
