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
    Mode,
)
from reference.step import Step
from tests.jobs import step_of

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


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.CONSTANT])
def test_a_unit_without_active_tokens_has_a_weight_of_0(mode: Mode) -> None:
    aggregation = Aggregation(mode, 4 if mode is Mode.CONSTANT else None)

    assert weights.sample_weights(step_of([1], [0], groups=[0, 1]), aggregation)[1] == 0


@MANY
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 99), st.data())
def test_a_router_loss_per_token_is_a_sum_of_shares_over_counted_tokens(
    dp: int, slices: int, micro_batches: int, counted: int, data: st.DataObject
) -> None:
    """Positions have 1 / (slices · positions) of their micro-batch's mean, times the positions."""
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
    """DDP averages over dp · slices ranks; the schedule multiplies by slices / micro-batches."""
    held = data.draw(st.integers(1, 9))
    of_rank = sum(Fraction(1, slices * held) for _ in range(held)) * Fraction(slices, micro_batches)
    ranks = dp * slices
    total = sum(of_rank * micro_batches for _ in range(ranks)) / ranks

    assert weights.router_coefficient(np.array([held]), slices) == total
