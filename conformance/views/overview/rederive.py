"""Derives the causes of committed reports again, by the rules of this version.

Use ``python -m conformance.views.overview.rederive`` after a change in how findings are grouped
into causes and worded. Observations and traces stay the same. A renamed mistake is given as
``OLD=NEW``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from conformance.comparing.report_file import load, write
from conformance.explain.causes import causes, with_traces
from conformance.findings.cause import CauseTrace, TermMistake
from conformance.views.overview.committed import REPORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conformance.findings.cause import Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report


def rederived(report: Report, renamed: Mapping[str, str]) -> Report:
    """Returns a report with renamed mistakes in its findings, and with new causes."""
    findings = [_renamed(one, renamed) for one in report.findings]
    clues = [_renamed_clues(one, renamed) for one in report.clues]
    traces = {
        name: CauseTrace(suspects=one.suspects, chain=one.chain, token=one.token)
        for one in reversed(report.causes)  # the worst cause comes last, and replaces others
        if one.suspects
        for name in one.findings
    }
    by_id = {finding.id: finding for finding in findings}
    found = with_traces(causes(findings, clues, report.chosen_by), traces, by_id)
    return report.model_copy(update={"findings": findings, "clues": clues, "causes": found})


def _renamed(finding: Finding, renamed: Mapping[str, str]) -> Finding:
    diagnosis = finding.diagnosis
    if diagnosis is None:
        return finding
    also = [renamed.get(name, name) for name in diagnosis.also]
    names = {"name": renamed.get(diagnosis.name, diagnosis.name), "also": also}
    return finding.model_copy(update={"diagnosis": diagnosis.model_copy(update=names)})


def _renamed_clues(clues: Clues, renamed: Mapping[str, str]) -> Clues:
    def name(one: TermMistake) -> TermMistake:
        return TermMistake.of(one.term, renamed.get(one.mistake, one.mistake))

    explanations = [
        [[*dict.fromkeys(map(name, part))] for part in parts] for parts in clues.explanations
    ]
    excluded = [*dict.fromkeys(map(name, clues.excluded))]
    return clues.model_copy(update={"explanations": explanations, "excluded": excluded})


if __name__ == "__main__":
    given = dict(argument.split("=") for argument in sys.argv[1:])
    for path in sorted(REPORTS.glob("*/*.json.gz")):
        write(rederived(load(path), given), path)
