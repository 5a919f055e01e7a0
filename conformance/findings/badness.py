"""How wrong a finding is: the factor that it is off by, which is what all orders go by.

A relative error is at most 1 where something is too small, and has no bound where it is too large:
it is what is held against a bound, and no measure of how bad something is. That is the factor r by
which something is too large or too small, and r is as bad as 1 / r. A report has 1 / r, the
*agreement*, which is finite where something is lost or has the wrong sign: there it is 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformance.findings.sanitize import last_line
from conformance.findings.verdict import Verdict
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.findings.finding import Finding

LEGEND = (
    "off by a factor: the larger of observed and expected divided by the smaller, where they differ"
    " most; infinite where a weight is lost or has the wrong sign"
)


def growth(old: Finding, new: Finding) -> float:
    """How much less of the agreement there is in the end; 0 where rounding may have taken it.

    It is also 0 where one of the two has no error. Where the same bits are asked for, the bound is
    0 and says nothing of rounding: there it is that of float32.
    """
    if old.error is None or new.error is None:
        return 0.0
    tolerance = max(old.tolerance or 0.0, new.tolerance or 0.0) or weight_bound("float32")
    before, after = _comparable(old, new)
    return before - after if abs(before - after) > tolerance * max(before, after) else 0.0


def _comparable(old: Finding, new: Finding) -> tuple[float, float]:
    """Agreements; by the errors where older reports have none, or where both are 0."""
    if old.agreement is None or new.agreement is None or old.agreement == new.agreement == 0:
        return _of_error(old), _of_error(new)
    return old.agreement, new.agreement


def _of_error(finding: Finding) -> float:
    """The least agreement there can be where something is too large by an error."""
    return 1 / (1 + (finding.error or 0.0))


def badness(finding: Finding) -> tuple[bool, bool, float, float]:
    """To sort by: what crashed, what is not finite, the factor it is off by, the relative error."""
    measured = bool(finding.tolerance)
    not_finite = finding.error is None and measured
    agreement = _of_error(finding) if finding.agreement is None else finding.agreement
    factor = 1 / agreement if agreement else math.inf
    return finding.verdict is Verdict.CRASHED, not_finite, factor, finding.error or 0.0


def off_by(finding: Finding) -> str:
    """How wrong it is, in words; empty where nothing was measured."""
    if finding.error is None:
        return ""
    if finding.agreement is None:
        return f"relative error {finding.error:.3g}"
    if not finding.agreement:
        return "off by an infinite factor"
    return f"off by a factor of {factor_text(1 / finding.agreement)}"


def factor_text(factor: float) -> str:
    """Three digits, those of what it is more than 1 by where that is less than 1."""
    more = factor - 1
    digits = 3 if more >= 1 or not more else 3 - math.floor(math.log10(more))
    rounded = float(f"{factor:.{digits}g}")
    return f"{rounded:,.{max(digits, 6)}g}"


def legend(findings: Iterable[Finding]) -> Iterator[str]:
    """What the words mean, if they are said of any of the findings."""
    if any(finding.agreement is not None for finding in findings):
        yield LEGEND


def explain(finding: Finding) -> str:
    """What is wrong, in one line."""
    if finding.diagnosis is not None:
        off = f"{words}: " if (words := off_by(finding)) else ""
        message = f" ({last_line(finding.message)})" if finding.message else ""
        place = f"; look at {finding.place}" if finding.place else ""
        return f"{off}{finding.diagnosis.explanation} [{finding.diagnosis.name}]{message}{place}"
    return last_line(finding.message)
