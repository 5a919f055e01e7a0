"""Factors between a token's loss and its weight."""

import math

import pytest

from conformance.tracing.graph import is_of_count


@pytest.mark.parametrize(
    ("factor", "is_one"),
    [(3.0, True), (0.5, True), (0.3, False), (math.nan, False), (math.inf, False)],
)
def test_a_factor_of_a_count_is_a_whole_number_or_one_over_it(factor: float, is_one: bool) -> None:
    """NaN and infinite factors, as in a sample without tokens, once ended all traces."""
    assert is_of_count(factor) is is_one
