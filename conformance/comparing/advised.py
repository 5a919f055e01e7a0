"""Advice that comes or goes between two versions, which breaks no promise of theirs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.diff import Difference
    from conformance.findings.finding import Finding


def said(difference: Difference) -> Iterator[str]:
    """Yield advice that is new, then advice that is gone, each mistake once with an example."""
    pairs = [(one.old, one.new) for one in difference.changes if one.old and one.new]
    yield from _said("new advice", [(new, old) for old, new in pairs])
    yield from _said("advice gone", pairs)


def _said(fate: str, pairs: list[tuple[Finding, Finding]]) -> Iterator[str]:
    """Yield each mistake that the first of a pair is advised of, and the second is not."""
    alike: dict[str, list[Finding]] = defaultdict(list)
    for advised, other in pairs:
        if advised.verdict is not Verdict.ADVICE:
            continue
        assert advised.diagnosis is not None
        name = advised.diagnosis.name
        if other.verdict is Verdict.CONFORMS or _is_advice_on_another(other, name):
            alike[name].append(advised)
    for name, [first, *others] in alike.items():
        more = f" and {len(others)} more" if others else ""
        assert first.diagnosis is not None
        yield f"{fate}: {first.id}{more}: {first.diagnosis.explanation} [{name}]"


def _is_advice_on_another(finding: Finding, name: str) -> bool:
    diagnosis = finding.diagnosis
    return finding.verdict is Verdict.ADVICE and diagnosis is not None and diagnosis.name != name
