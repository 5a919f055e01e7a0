"""Rewrites our own sentences in the committed reports, which then need no other run.

``python -m conformance.views.overview.reword SENTENCES`` reads a JSON object of old and new
sentences. Only departures and the sentences on known mistakes change: names, numbers and what a
framework said stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.report_file import load, write
from conformance.explain.catalogue.mistake import MISTAKES
from conformance.views.overview.pages import REPORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report


def reworded(report: Report, sentences: Mapping[str, str]) -> Report:
    """Returns a report with new sentences: departures as a whole, mistakes' as parts of a text."""
    longest_first = sorted(sentences, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest_first)))

    def text(former: str) -> str:
        return known.sub(lambda found: sentences[found[0]], former)

    def cause(one: Cause) -> Cause:
        is_known = one.name in MISTAKES
        return one.model_copy(update={"statement": text(one.statement)}) if is_known else one

    def finding(one: Finding) -> Finding:
        if one.diagnosis is None:
            return one
        explanation = text(one.diagnosis.explanation)
        diagnosis = one.diagnosis.model_copy(update={"explanation": explanation})
        return one.model_copy(update={"diagnosis": diagnosis})

    departures = [
        replace(one, what=sentences.get(one.what, one.what), why=sentences.get(one.why, one.why))
        for one in report.departures
    ]
    return report.model_copy(
        update={
            "departures": departures,
            "causes": [cause(one) for one in report.causes],
            "findings": [finding(one) for one in report.findings],
        }
    )


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for path in sorted(REPORTS.glob("*/*.json.gz")):
        write(reworded(load(path), given), path)
