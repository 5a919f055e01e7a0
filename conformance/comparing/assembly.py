"""Makes the report of a run's findings, with their causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.badness import failure
from conformance.findings.report import Report
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import UNJUDGED, WRONG, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.findings.cause import Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Header, Selection


def assembled(
    header: Header,
    findings: Sequence[Finding],
    clues: Sequence[Clues],
    selection: Selection,
    watched: frozenset[str] = frozenset(),
    fault: str | None = None,
) -> Report:
    """The report of findings that arrived in any order, whose clues are numbered as they came.

    Of clues only those are kept that bear on what is wrong, and on ``watched`` mistakes.
    """
    from conformance.explain.find import causes  # imports numpy, which readers of reports do not

    by_id = sorted(_credible(findings), key=lambda finding: finding.id)
    ordered, numbered = _numbered(by_id, clues, watched)
    found = causes(ordered, numbered)
    return Report.assemble(header, ordered, selection, found, numbered, fault)


def _credible(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings, without verdicts if each of several steps ended in one and the same exception.

    Nothing then shows that the adapter can drive this version at all.
    """
    tried = [one for one in findings if not (one.is_of_bad_input or one.verdict in UNJUDGED)]
    failures = {(one.verdict, numberless(failure(one))) for one in tried}
    steps = {(one.mode, one.layout, one.case) for one in tried}
    if len(steps) < 2 or len(failures) > 1 or tried[0].verdict is not Verdict.CRASHED:
        return findings
    return [
        one.model_copy(update={"verdict": Verdict.NOT_DRIVEN}) if one in tried else one
        for one in findings
    ]


def _numbered(
    findings: Sequence[Finding], clues: Sequence[Clues], watched: frozenset[str]
) -> tuple[list[Finding], list[Clues]]:
    """The findings and the clues that are kept, numbered in their order."""
    are_kept = watched or any(finding.verdict in WRONG for finding in findings)
    suspected = watched.union(*(one.suspects for one in clues))
    kept = [one.about(suspected) for one in clues]
    lines = [one.model_dump_json() for one in kept]
    places: dict[str, tuple[int, Clues]] = {}
    ordered = []
    for finding in findings:
        number = None
        if are_kept and finding.clues is not None:
            line = lines[finding.clues]
            number, _ = places.setdefault(line, (len(places), kept[finding.clues]))
        ordered.append(finding.model_copy(update={"clues": number}))
    return ordered, [one for _, one in places.values()]
