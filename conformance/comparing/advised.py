"""Advice that is new or gone in the later of two versions. Advice breaks no promise."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.diff import Difference
    from conformance.findings.finding import Finding


def said(difference: Difference) -> Iterator[str]:
    """Yield advice that is new, then advice that is gone, each mistake once with an example."""
    for fate, name, (first, *others) in _changed(difference):
        more = f" and {len(others)} more" if others else ""
        assert first.diagnosis is not None
        yield f"{fate}: {first.id}{more}: {first.diagnosis.explanation} [{name}]"


def clauses(difference: Difference) -> Iterator[str]:
    """Yield a clause for each mistake that is new or gone in advice, with a count of findings."""
    for fate, name, findings in _changed(difference):
        says = MISTAKES[name].says if name in MISTAKES else name.replace("_", " ")
        yield f"{fate}: {says} ({len(findings)} finding{'s' if len(findings) > 1 else ''})"


def _changed(difference: Difference) -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield each mistake that is advice on only one of the versions: fate, name and findings."""
    pairs = [(one.old, one.new) for one in difference.changes if one.old and one.new]
    for fate, several in (
        ("new advice", [(new, old) for old, new in pairs]),
        ("advice gone", pairs),
    ):
        for name, findings in _alone(several).items():
            yield fate, name, findings


def _alone(pairs: list[tuple[Finding, Finding]]) -> dict[str, list[Finding]]:
    """Return, for each mistake, the findings that are advice only in the first of a pair."""
    alike: dict[str, list[Finding]] = defaultdict(list)
    for advised, other in pairs:
        if advised.verdict is not Verdict.ADVICE:
            continue
        assert advised.diagnosis is not None
        name = advised.diagnosis.name
        if other.verdict is Verdict.CONFORMS or _is_advice_on_another(other, name):
            alike[name].append(advised)
    return alike


def _is_advice_on_another(finding: Finding, name: str) -> bool:
    diagnosis = finding.diagnosis
    return finding.verdict is Verdict.ADVICE and diagnosis is not None and diagnosis.name != name
