"""Estimators of the divergence, worked by hand and against their derivatives."""

import math

import numpy as np
import pytest

from reference.aggregation import DivergenceEstimator
from reference.losses import divergences

K1, K1_BY_RATIO, K3, K3_BY_RATIO = DivergenceEstimator


@pytest.mark.parametrize(
    ("estimator", "value", "derivative"),
    [
        (K1, math.log(2), 1.0),
        # k3 is 1/2 + log 2 - 1, and its derivative is 1 - 1/2
        (K3, math.log(2) - 0.5, 0.5),
        (K3_BY_RATIO, math.log(2) - 0.5, math.log(2)),
        (K1_BY_RATIO, math.log(2), math.log(2)),
    ],
)
def test_token_of_twice_the_probability(
    estimator: DivergenceEstimator, value: float, derivative: float
) -> None:
    log_ratios = np.array([math.log(2), 0.0])

    assert divergences.estimate(log_ratios, estimator) == pytest.approx([value, 0.0])
    assert divergences.derivative(log_ratios, estimator) == pytest.approx(
        [derivative, 1.0 if estimator is K1 else 0.0]
    )


@pytest.mark.parametrize("estimator", DivergenceEstimator)
def test_derivative_is_that_of_the_estimate_times_a_ratio_if_it_has_one(
    estimator: DivergenceEstimator,
) -> None:
    log_ratios, step = np.array([-1.5, 0.25, 4.0]), 1e-6
    by_ratio = estimator in (K1_BY_RATIO, K3_BY_RATIO)

    def at(moved: float) -> np.ndarray:
        ratio = math.exp(moved) if by_ratio else 1.0
        differentiated = 0.0 if estimator is K1_BY_RATIO else moved
        return ratio * divergences.estimate(log_ratios + differentiated, estimator)

    numerical = (at(step) - at(-step)) / (2 * step)
    assert divergences.derivative(log_ratios, estimator) == pytest.approx(numerical, rel=1e-6)
