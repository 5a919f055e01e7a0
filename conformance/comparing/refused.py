"""Steps that one of two versions refuses, and the other trains, whether correctly or not."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from conformance.findings.badness import failure
from conformance.findings.sanitize import first_line, numberless
from conformance.findings.verdict import UNJUDGED, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.diff import Difference
    from conformance.findings.finding import Finding


def no_longer_refused(difference: Difference) -> Iterator[str]:
    """Yield each error with which only the old version refuses steps, with its findings."""
    yield from _said("no longer refused", _pairs(difference))


def newly_refused(difference: Difference) -> Iterator[str]:
    """Yield each error with which only the new version refuses steps, with its findings."""
    yield from _said("refused now", [(new, old) for old, new in _pairs(difference)])


def _pairs(difference: Difference) -> list[tuple[Finding, Finding]]:
    return [(one.old, one.new) for one in difference.changes if one.old and one.new]


def _said(fate: str, pairs: list[tuple[Finding, Finding]]) -> Iterator[str]:
    """Yield the errors of steps that the first of a pair refuses and the second trains."""
    alike: dict[str, list[Finding]] = defaultdict(list)
    for refused, other in pairs:
        is_trained = other.verdict not in (*UNJUDGED, Verdict.REFUSED)
        if refused.verdict is Verdict.REFUSED and is_trained and not refused.is_of_bad_input:
            alike[numberless(failure(refused))].append(refused)
    for first, *others in alike.values():
        more = f" and {len(others)} more" if others else ""
        yield f"{fate}: {first.id}{more}: {first_line(first.message)}"
