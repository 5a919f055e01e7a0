"""The bounds hold for real float32 arithmetic, and are tight enough to catch one token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.rounding import (
    UNIT_ROUNDOFF,
    WEIGHT_OPERATIONS,
    gamma,
    ratio_bound,
    reported_bound,
    weight_bound,
)


@given(st.lists(st.integers(1, 10_000), min_size=WEIGHT_OPERATIONS, max_size=WEIGHT_OPERATIONS))
def test_float32_products_stay_within_the_bound(factors: list[int]) -> None:
    exact, rounded = 1.0, np.float32(1)
    for number, factor in enumerate(factors):
        if number % 2:
            exact, rounded = exact / factor, rounded / np.float32(factor)
        else:
            exact, rounded = exact * factor, rounded * np.float32(factor)

    assert abs(float(rounded) - exact) <= weight_bound("float32") * exact


@given(st.lists(st.integers(1, 1000), min_size=3, max_size=3), st.integers(1, 10_000))
def test_bfloat16_parameters_of_float32_losses_stay_within_the_bound(
    factors: list[int], tokens: int
) -> None:
    exact, rounded = 1 / tokens, torch.tensor(1.0) / tokens
    rounded = rounded.to(torch.bfloat16)
    for factor in factors[1:]:
        exact, rounded = exact / factor, rounded / factor

    assert abs(rounded.item() - exact) <= weight_bound("bfloat16") * exact


def test_one_token_in_forty_is_above_the_bound_of_bfloat16() -> None:
    assert 1 / 42 < weight_bound("bfloat16") < 1 / 41


def test_bounds_are_those_of_higham() -> None:
    """gamma(k, u) = k·u / (1 - k·u): a weight has 16 roundings, and one more for each summand."""
    u = 2.0**-24

    assert {
        "float64": 2.0**-53,
        "float32": u,
        "float16": 2.0**-11,
        "bfloat16": 2.0**-8,
    } == UNIT_ROUNDOFF
    assert (gamma(0, 2.0**-8), gamma(64, 2.0**-8)) == (0, 1 / 3)
    assert weight_bound("float32") == 16 * u / (1 - 16 * u)
    assert reported_bound(100, "float32") == 116 * u / (1 - 116 * u)
    assert reported_bound(100, "float32", operations=3) == 122 * u / (1 - 122 * u)
    assert weight_bound("float32", summands=5, terms=3) == 24 * u / (1 - 24 * u)
    assert weight_bound("bfloat16") == weight_bound("float32") + 6 / 250
    assert weight_bound("bfloat16", terms=3) == weight_bound("float32", terms=3) + 9 / 247
    assert weight_bound("bfloat16", summands=1000) < weight_bound("bfloat16") + 1e-4
    assert reported_bound(100, "bfloat16") == reported_bound(100, "float32")
    u = 2.0**-53
    assert weight_bound("float64") == 16 * u / (1 - 16 * u)
    assert reported_bound(100, "float64") == 116 * u / (1 - 116 * u)


def test_ratios_add_their_own_roundings_to_those_of_a_weight() -> None:
    """Two ratios add 32 roundings, and each token of a sequence one, times the condition number."""
    u = 2.0**-24

    of_ratios = 37 * u / (1 - 37 * u)
    assert ratio_bound("float32", tokens=5) == weight_bound("float32", summands=5) + of_ratios
    assert ratio_bound("float32", 5, condition=8) == pytest.approx(
        weight_bound("float32", summands=5) + 8 * of_ratios
    )


def test_too_many_roundings_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared whole below
        gamma(256, 2.0**-8)

    assert str(refused.value) == (
        "256 roundings of 0.00390625 each leave no correct digit; use a wider dtype"
    )
    assert gamma(255, 2.0**-8) == 255
