"""Estimators of the divergence from the reference policy, in float64.

For a token, d = log p - log p_ref. The ratio of new to old policy is r = 1, and its derivative with
respect to the log-probability is 1 too.

    k1           d                        derivative 1
    k1_by_ratio  r · sg(d)                derivative d
    k3           exp(-d) + d - 1          derivative 1 - exp(-d)
    k3_by_ratio  r · (exp(-d) + d - 1)    derivative d

sg(d) has no gradient. (k1 and k3: Schulman, Approximating KL Divergence, 2020; k3_by_ratio:
DeepSeek-V3.2, arXiv:2512.02556; k1_by_ratio is the policy gradient of on-policy distillation.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reference.aggregation import DivergenceEstimator

if TYPE_CHECKING:
    from reference.arrays import Values


def estimate(log_ratios: Values, estimator: DivergenceEstimator) -> Values:
    """The estimate for each token, given its d: [tokens]."""
    if estimator in (DivergenceEstimator.K1, DivergenceEstimator.K1_BY_RATIO):
        return log_ratios
    return np.expm1(-log_ratios) + log_ratios


def derivative(log_ratios: Values, estimator: DivergenceEstimator) -> Values:
    """The derivative of each token's estimate with respect to its log-probability: [tokens]."""
    if estimator is DivergenceEstimator.K1:
        return np.ones_like(log_ratios)
    if estimator is DivergenceEstimator.K3:
        return -np.expm1(-log_ratios)
    return log_ratios
