"""The badness of a finding: the factor that its numbers are off by, a key to sort findings.

Relative errors are only compared with a bound. They do not measure badness, because the relative
error of a number that is too small is at most 1, but a number that is too large can have any error.
The factor r measures badness, and r is as bad as 1 / r. A report contains the smaller of r and
1 / r, the *agreement*, which is 0 if a weight is lost or has the wrong sign.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.findings.finding import Finding

LEGEND = (
    "off by a factor: the larger of observed and expected divided by the smaller, where they differ"
    " most"
)


def growth(old: Finding, new: Finding) -> float:
    """The loss of agreement from the old finding to the new; 0 if it may be rounding.

    The loss is also 0 if one of the findings has no error. A bound of 0, which checks for equal
    bits have, is replaced by the bound of float32.
    """
    if old.error is None or new.error is None:
        return 0.0
    tolerance = max(old.tolerance or 0.0, new.tolerance or 0.0) or weight_bound("float32")
    before, after = _comparable(old, new)
    return before - after if abs(before - after) > tolerance * max(before, after) else 0.0


def _comparable(old: Finding, new: Finding) -> tuple[float, float]:
    """Both agreements, derived from the errors if older reports lack them or both are 0."""
    if old.agreement is None or new.agreement is None or old.agreement == new.agreement == 0:
        return _excess_agreement(old), _excess_agreement(new)
    return old.agreement, new.agreement


def _excess_agreement(finding: Finding) -> float:
    """The agreement 1 / (1 + error), which holds if the number is too large."""
    return 1 / (1 + (finding.error or 0.0))


def badness(finding: Finding) -> tuple[bool, bool, float, float]:
    """A sort key: crashed, not finite, the factor that it is off by, the relative error."""
    measured = bool(finding.tolerance)
    not_finite = finding.error is None and measured
    agreement = _excess_agreement(finding) if finding.agreement is None else finding.agreement
    factor = 1 / agreement if agreement else math.inf
    return finding.verdict is Verdict.CRASHED, not_finite, factor, finding.error or 0.0


def off_by(finding: Finding) -> str:
    """A phrase for how wrong a finding is; empty if nothing was measured."""
    is_right = finding.verdict is Verdict.ADVICE and finding.agreement is None
    if finding.error is None or is_right:
        return ""
    if finding.agreement is None:
        return f"relative error {finding.error:.3g}"
    if not finding.agreement:
        return "a value is lost (0) or has the wrong sign"
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
