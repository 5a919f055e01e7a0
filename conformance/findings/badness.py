"""How wrong a finding is: the factor that its numbers are off by, by which findings are sorted.

A relative error is at most 1 if something is too small and unbounded if it is too large: it is
compared with a bound and does not measure how bad something is. The factor r does, and r is as bad
as 1 / r. A report contains the smaller of both, the *agreement*, which is 0 if a weight is lost or
has the wrong sign.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from conformance.findings.finding import Finding


LEGEND = (
    "off by a factor: the larger of observed and expected divided by the smaller, where they differ"
    " most; infinite where a weight is lost or has the wrong sign"
)

EXACT = 1e-12
"""Fraction of the sum of absolute values below which a difference is a rounding error (float64)."""


def growth(old: Finding, new: Finding) -> float:
    """The loss of agreement from the old finding to the new; 0 if it may be rounding.

    It is also 0 if one of the two has no error. A bound of 0, for checks that ask for equal bits,
    is replaced by that of float32.
    """
    if old.error is None or new.error is None:
        return 0.0
    tolerance = max(old.tolerance or 0.0, new.tolerance or 0.0) or weight_bound("float32")
    before, after = _comparable(old, new)
    return before - after if abs(before - after) > tolerance * max(before, after) else 0.0


def _comparable(old: Finding, new: Finding) -> tuple[float, float]:
    """Both agreements, derived from the errors if older reports lack them or both are 0."""
    if old.agreement is None or new.agreement is None or old.agreement == new.agreement == 0:
        return _of_error(old), _of_error(new)
    return old.agreement, new.agreement


def _of_error(finding: Finding) -> float:
    """The agreement if a relative error is an excess."""
    return 1 / (1 + (finding.error or 0.0))


def badness(finding: Finding) -> tuple[bool, bool, float, float]:
    """A sort key: crashed, not finite, the factor it is off by, the relative error."""
    measured = bool(finding.tolerance)
    not_finite = finding.error is None and measured
    agrees = _of_error(finding) if finding.agreement is None else finding.agreement
    factor = 1 / agrees if agrees else math.inf
    return finding.verdict is Verdict.CRASHED, not_finite, factor, finding.error or 0.0


def off_by(finding: Finding) -> str:
    """A phrase for how wrong a finding is; empty if nothing was measured."""
    is_right = finding.verdict is Verdict.ADVICE and finding.agreement is None
    if finding.error is None or is_right:
        return ""
    if finding.agreement is None:
        return f"relative error {finding.error:.3g}"
    if not finding.agreement:
        return "off by an infinite factor"
    return f"off by a factor of {factor_text(1 / finding.agreement)}"


def factor_text(factor: float) -> str:
    """A factor with three significant digits, counted after the 1 if it is less than 2."""
    more = factor - 1
    digits = 3 if more >= 1 or not more else 3 - math.floor(math.log10(more))
    rounded = float(f"{factor:.{digits}g}")
    return f"{rounded:,.{max(digits, 6)}g}"


def legend(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the legend if any of the findings has an agreement."""
    if any(finding.agreement is not None for finding in findings):
        yield LEGEND


def explain(finding: Finding) -> str:
    """One line on what is wrong."""
    if finding.diagnosis is not None:
        off = f"{words}: " if (words := off_by(finding)) else ""
        message = f" ({first_line(finding.message)})" if finding.message else ""
        place = f"; look at {finding.place}" if finding.place else ""
        return f"{off}{finding.diagnosis.explanation} [{finding.diagnosis.name}]{message}{place}"
    words = failure(finding)
    is_declined = finding.verdict is Verdict.DECLINED
    return f"an ordinary step is declined: {words}" if is_declined else words


def failure(finding: Finding) -> str:
    """The framework's own words on why a step was not trained, and where it raised, if known."""
    words = first_line(finding.message)
    return f"{words}, at {finding.place}" if finding.place else words


def agreement(
    observed: NDArray[np.float64],
    expected: NDArray[np.float64],
    magnitude: NDArray[np.float64] | None = None,
) -> float | None:
    """Returns the smaller of observed and expected divided by the larger, where that is least.

    It is in [0, 1], and None where something is not finite. All arguments are of shape [numbers].
    Rounding errors are relative to ``magnitude``, which for a sum whose terms may cancel is the sum
    of their absolute values. Such a sum is off by 1 + |observed - expected| / magnitude where it is
    too large, and by as much where it is too small by the same factor; its sign may be wrong by
    little. Where 0 is expected, the observed number counts as at least the largest magnitude.
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
    """Returns the smaller of the magnitudes; of the observed terms only the sum is known."""
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

    The scale is that of least squares: the factor on the learning rate. Both arguments are of shape
    [tokens]; None where a norm is 0 or not finite.
    """
    if not np.isfinite(observed).all() or not expected.any():
        return None, None
    product, norm = float(observed @ expected), float(np.linalg.norm(observed))
    length = float(np.linalg.norm(expected))
    return product / length**2, product / (norm * length) if norm else None
