"""The agreement of observed numbers with expected ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT = 1e-12
"""Fraction of the sum of absolute values below which a difference is a rounding error (float64)."""


def agreement(
    observed: NDArray[np.float64],
    expected: NDArray[np.float64],
    magnitude: NDArray[np.float64] | None = None,
) -> float | None:
    """Returns the least ratio of the smaller to the larger of observed and expected numbers.

    The ratio is in [0, 1], or None if a number is not finite. All arguments are of shape [numbers].
    Rounding errors are relative to ``magnitude``: for a sum whose terms may cancel, the sum of the
    absolute values of its terms. A sum that is too large agrees by ``magnitude`` / (``magnitude`` +
    |observed - expected|), and one that is too small by the same factor agrees as much. A small
    error that changes the sign of a sum counts as small. Where 0 is expected, the observed number
    counts as at least the largest magnitude.
    """
    if not np.isfinite(observed).all():
        return None
    magnitude = np.abs(expected) if magnitude is None else magnitude
    off = np.abs(observed - expected)
    there = magnitude > 0
    leaked = off[~there].max(initial=0.0) / (magnitude.max(initial=0.0) or 1.0)
    worst = 1 / (1 + max(leaked, 1.0)) if leaked else 1.0
    smaller = _smaller(observed[there], expected[there], magnitude[there])
    wrong = off[there] > 0
    agreements = smaller[wrong] / (smaller[wrong] + off[there][wrong])
    return float(min(agreements.min(initial=1.0), worst))


def _smaller(
    observed: NDArray[np.float64], expected: NDArray[np.float64], magnitude: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the smaller of the expected magnitude and the observed one, estimated from sums."""
    cancelled = magnitude - np.abs(expected)
    cancelled[cancelled < EXACT * magnitude] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(expected == 0, 1.0, observed / expected)
    scaled: NDArray[np.float64] = magnitude * np.minimum(ratio, 1.0)
    return np.where(ratio < 0, cancelled, scaled)


def direction(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    """Returns the scale and the cosine of an observed gradient to the expected one.

    The scale is the least-squares factor, which acts like a factor on the learning rate. Both
    arguments are of shape [tokens]; None if a norm is 0 or not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = float(observed @ expected)
        norm, length = (math.sqrt(float(one @ one)) for one in (observed, expected))
    if not math.isfinite(norm) or not length:
        return None, None
    return product / length**2, product / (norm * length) if norm else None
