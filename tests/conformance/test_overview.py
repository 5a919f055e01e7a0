"""The pages about committed reports name each cause of a framework once, the worst first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conformance.findings.verdict import Check, Verdict
from conformance.views.overview.committed import Version
from conformance.views.overview.pages import (
    advice_causes,
    worst_causes,
    wrong_causes,
    wrong_of_seen,
)
from tests.conformance.pages import finding_of, report_of

if TYPE_CHECKING:
    from conformance.findings.finding import Finding


def version(name: str, *findings: Finding) -> Version:
    return Version(name=name, path=Path(f"toy/{name}.json.gz"), report=report_of(findings))


def of(mistake: str, check: Check = Check.WEIGHTS, verdict: Verdict = Verdict.MISMATCH) -> Finding:
    diagnosis = {"name": mistake, "explanation": "e"}
    return finding_of(mistake, check=check, verdict=verdict, error=1.0, diagnosis=diagnosis)


FOUND = [
    version("v1", of("accepted", Check.ARGUMENTS), of("not_divided")),
    version("v2", of("not_divided"), of("depends_on_cut", verdict=Verdict.ADVICE)),
]


def test_causes_of_several_versions_are_one_line_the_worst_first() -> None:
    _, _, *lines = wrong_causes(FOUND)

    assert [line.split(" | ")[2:4] for line in lines] == [
        ["wrong gradient", "token losses are added up and not divided"],
        ["bad input accepted", "arguments: bad input is accepted"],
    ]
    assert lines[0].endswith("| v1 (1), v2 (1) |")


def test_advice_is_a_table_of_its_own() -> None:
    _, _, line = advice_causes(FOUND)

    assert line.split(" | ")[2] == "advice"
    assert line.endswith("| v2 (1) |")


def test_refusals_are_counted_apart_from_what_is_right() -> None:
    right = finding_of("a", verdict=Verdict.CONFORMS)
    refused = finding_of("b", verdict=Verdict.REFUSED)
    bad = finding_of("a", check=Check.ARGUMENTS, verdict=Verdict.REFUSED)
    found = [version("v1", right, refused, bad), version("v2", refused)]

    _, _, *lines = wrong_of_seen(found, "check", [Check.WEIGHTS, Check.ARGUMENTS])

    assert [line.split(" | ", 3)[3] for line in lines] == [
        "ok (1), refused (1) | ok (1) |",
        "refused (1) | – |",
    ]


def test_a_version_is_told_by_its_worst_causes() -> None:
    many = version("v3", *(of(f"mistake {number}") for number in range(5)))
    _, _, *lines = worst_causes([*FOUND, many, version("v4")])

    assert (
        lines[1]
        == "| toy | torch | v2 | **1** of 1 | token losses are added up and not divided (1) |"
    )
    assert lines[2].endswith("(1); 2 more |")
    assert lines[3] == "| toy | torch | v4 | none of 0 | – |"
