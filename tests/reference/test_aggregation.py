"""What a mode and divisor may be (the startup validation of miles' pull request 1328)."""

from __future__ import annotations

import pytest

from reference.aggregation import Aggregation, InvalidAggregationError, Mode


@pytest.mark.parametrize("divisor", [0, 0.0, -1, float("nan"), float("inf"), -float("inf")])
def test_refuses_a_divisor_that_is_not_positive_and_finite(divisor: float) -> None:
    with pytest.raises(InvalidAggregationError, match="is not a positive finite number; give one"):
        Aggregation(Mode.CONSTANT, divisor)


@pytest.mark.parametrize("divisor", [None, True, False, "4"])
def test_refuses_a_divisor_that_is_no_number(divisor: object) -> None:
    with pytest.raises(InvalidAggregationError, match="constant needs a divisor and got"):
        Aggregation(Mode.CONSTANT, divisor)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.CONSTANT])
def test_refuses_a_divisor_with_another_mode(mode: Mode) -> None:
    with pytest.raises(InvalidAggregationError, match="only constant divides by one"):
        Aggregation(mode, 4)


def test_refuses_an_unknown_mode() -> None:
    with pytest.raises(InvalidAggregationError, match="'median' is unknown; choose one of sample_"):
        Aggregation("median")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token_mean", Aggregation(Mode.TOKEN_MEAN)),
        ("constant:40960", Aggregation(Mode.CONSTANT, 40960)),
    ],
)
def test_reads_what_a_user_types(text: str, expected: Aggregation) -> None:
    assert Aggregation.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constant:many", "divisor 'many' of 'constant:many' is not a number"),
        ("constant", "constant needs a divisor"),
        ("token_mean:4", "only constant divides by one"),
    ],
)
def test_refuses_what_a_user_mistypes(text: str, message: str) -> None:
    with pytest.raises(InvalidAggregationError, match=message):
        Aggregation.parse(text)
