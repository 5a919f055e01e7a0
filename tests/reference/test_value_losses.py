"""A critic's clipped loss, by exact arithmetic and by its own definition."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract.batch.token_values import ADVANTAGES, OLD_VALUES
from adapters.contract.objective import CONSTANTS
from reference.losses.value_losses import ValueTokens, value_clipped

EIGHTHS = st.integers(-24, 24).map(lambda eighths: Fraction(eighths, 8))
BOUND = Fraction(3, 8)


def derivative(value: Fraction, old: Fraction, target: Fraction, bound: Fraction) -> Fraction:
    """The derivative of the larger error, by definition; of the value's error if both are equal."""
    bounded = old + max(-bound, min(value - old, bound))
    moved_too_far = bounded != value
    is_of_bounded = moved_too_far and (bounded - target) ** 2 > (value - target) ** 2
    return Fraction(0) if is_of_bounded else 2 * (value - target)


@given(st.lists(st.tuples(EIGHTHS, EIGHTHS, EIGHTHS), min_size=1))
def test_derivatives_are_exact(tokens: list[tuple[Fraction, Fraction, Fraction]]) -> None:
    values, old_values, returns = (np.array([*map(float, of)]) for of in zip(*tokens, strict=True))
    found = value_clipped(
        ValueTokens(values=values, old_values=old_values, returns=returns), float(BOUND)
    )

    assert found.tolist() == [float(derivative(*token, BOUND)) for token in tokens]


def test_clipping_is_decided_by_the_sign_of_a_return_alone() -> None:
    """Frameworks that train half of the squared error are given twice the returns of others."""
    old_values, advantages = (of.ravel() for of in np.meshgrid(OLD_VALUES, ADVANTAGES))
    clipped = [
        value_clipped(
            ValueTokens(values=np.zeros(len(old_values)), old_values=old_values, returns=returns),
            CONSTANTS.value_clip,
        )
        == 0
        for returns in (advantages, advantages / 2)
    ]

    assert clipped[0].any()
    assert not clipped[0].all()
    assert np.array_equal(*clipped)
