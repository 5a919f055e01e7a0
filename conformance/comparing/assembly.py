"""Makes the report of a run's findings, with their causes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from conformance.causes.find import causes
from conformance.findings.report import Report
from conformance.findings.verdict import WRONG

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
) -> Report:
    """The report of findings that arrived in any order, whose clues are numbered as they came.

    Of clues only those are kept that bear on what is wrong, and on ``watched`` mistakes.
    """
    by_id = sorted(findings, key=lambda finding: finding.id)
    ordered, numbered = _numbered(by_id, clues, watched)
    return Report.assemble(header, ordered, selection, causes(ordered, numbered), numbered)


def _numbered(
    findings: Sequence[Finding], clues: Sequence[Clues], watched: frozenset[str]
) -> tuple[list[Finding], list[Clues]]:
    """The findings and the clues that are kept, numbered in their order."""
    are_kept = watched or any(finding.verdict in WRONG for finding in findings)
    parts = chain.from_iterable(chain.from_iterable(one.explanations) for one in clues)
    suspected = watched.union(name.partition("/")[2] for name in chain.from_iterable(parts))
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
