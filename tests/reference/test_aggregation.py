"""Valid modes and divisors (the startup validation of miles' pull request 1328)."""

import pytest

from reference.aggregation import (
    DEFAULT_CONVENTIONS,
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    InvalidAggregationError,
    Mode,
    SampleUnit,
)
from tests.tables import table


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
    with pytest.raises(InvalidAggregationError, match="only constant has a divisor"):
        Aggregation(mode, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token_mean", Aggregation(Mode.TOKEN_MEAN)),
        ("constant:40960", Aggregation(Mode.CONSTANT, 40960)),
        ("constant:0.5", Aggregation(Mode.CONSTANT, 0.5)),
    ],
)
def test_reads_what_a_user_types(text: str, expected: Aggregation) -> None:
    assert Aggregation.parse(text) == expected


@pytest.mark.parametrize(("text", "message"), table("conformance/refusals.toml")["mode"].items())
def test_refusal_tells_value_rule_and_way_out(text: str, message: str) -> None:
    with pytest.raises(InvalidAggregationError) as refused:
        Aggregation.parse(text)

    assert str(refused.value) == message


def test_conventions_are_by_default_those_of_the_contract() -> None:
    conventions = Conventions()

    assert conventions == DEFAULT_CONVENTIONS
    assert conventions.sample_unit is SampleUnit.SAMPLE
    assert conventions.empty_units is EmptyUnits.COUNTED
    assert conventions.denominator_mask is DenominatorMask.MODIFIED


def test_a_mode_may_be_given_by_its_name() -> None:
    assert Aggregation("token_mean").mode is Mode.TOKEN_MEAN  # type: ignore[arg-type]
