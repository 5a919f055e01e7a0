"""The pages about committed reports name each cause of a framework once, the worst first."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from conformance.comparing import expectations
from conformance.comparing import known as known_mistakes
from conformance.comparing.expectations import Expectations
from conformance.findings.cause import Harm, SuspectedLine
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.verdict import Check, Verdict
from conformance.views.overview.accusations import accusations
from conformance.views.overview.committed import CommittedReport
from conformance.views.overview.pages import (
    cause_rows,
    mistake_rows,
    mistake_table,
    wrong_of_seen,
)
from conformance.views.overview.rederive import rederived
from tests.conformance.pages import finding_of, report_of
from tests.findings import wrong

KNOWN_OF_TOY = """
framework = "toy"
engine = ["torch", "fsdp"]
code = "https://example.org/blob/1/"

[[cause]]
name = ["not_divided", "divided_by_dp"]
reason = "The loss is never divided."
reach = "`--sum`"
line = "toy/loss.py:7"
upstream = "issue 1"
link = "https://example.org/issues/1"
looked_up = 2026-11-28

[[cause]]
name = "multiplied_by_cp"
reason = "Gradients are multiplied."
line = "toy/loss.py:9"
deliberate = "pull request 2"
looked_up = 2026-11-28
"""


def version(name: str, *findings: Finding) -> CommittedReport:
    return CommittedReport(name=name, path=Path(f"toy/{name}.json.gz"), report=report_of(findings))


def of(mistake: str, check: Check = Check.WEIGHTS, verdict: Verdict = Verdict.MISMATCH) -> Finding:
    diagnosis = {"name": mistake, "explanation": "e"}
    return finding_of(mistake, check=check, verdict=verdict, error=1.0, diagnosis=diagnosis)


FOUND = [
    version("v1", of("accepted", Check.ARGUMENTS), of("not_divided")),
    version("v2", of("not_divided"), of("depends_on_cut", verdict=Verdict.ADVICE)),
]


def test_causes_of_several_versions_are_one_row_the_worst_first() -> None:
    rows = [*cause_rows(FOUND, [Harm.GRADIENT_BY_DEFAULT, Harm.ACCEPTED])]

    assert [row[1:3] for row in rows] == [
        ["wrong gradient by default", "token losses are summed but never normalised"],
        ["bad input accepted", "bad input is accepted: arguments of accepted"],
    ]
    assert rows[0][-1] == "torch: v1 (1), v2 (1)"


def test_advice_is_chosen_by_its_severity() -> None:
    [row] = cause_rows(FOUND, [Harm.ADVICE])

    assert (row[1], row[-1]) == ("advice", "torch: v2 (1)")


def test_a_cause_of_several_engines_is_one_row() -> None:
    other = FOUND[1].report.model_copy(update={"engine": "fsdp"})
    found = [replace(FOUND[1], report=other), *FOUND]
    [row] = cause_rows(found, [Harm.GRADIENT_BY_DEFAULT])

    assert row[-1] == "fsdp: v2 (1); torch: v1 (1), v2 (1)"


def test_refusals_are_counted_apart_from_what_is_right() -> None:
    right = finding_of("a", verdict=Verdict.CONFORMS)
    refused = finding_of("b", verdict=Verdict.REFUSED)
    bad = finding_of("a", check=Check.ARGUMENTS, verdict=Verdict.REFUSED)
    found = [version("v1", right, refused, bad), version("v2", refused)]

    rows = wrong_of_seen(found, "check", [Check.WEIGHTS, Check.ARGUMENTS])

    assert [row[3:] for row in rows] == [["ok (1), refused (1)", "ok (1)"], ["refused (1)", "–"]]


def rows(found: list[CommittedReport]) -> list[list[str]]:
    return [*mistake_rows(accusations(found))]


def test_a_mistake_is_a_row_with_its_bug_report_the_worst_first() -> None:
    crash = finding_of("a", verdict=Verdict.CRASHED, message="KeyError: [1")
    other = version("v2", of("not_divided"), crash).report.model_copy(update={"engine": "fsdp"})
    found = [replace(FOUND[1], report=other), FOUND[1]]

    assert rows(found) == [
        [
            "toy",
            "wrong gradient by default",
            "token losses are summed but never normalised"
            " ([report](reports/issues/toy-not_divided.md))",
            "by default",
            "–",
            "not looked up",
        ],
        [
            "toy",
            "step that cannot run",
            "KeyError: [1 ([report](reports/issues/toy-crashed.md))",
            "by default",
            "–",
            "not looked up",
        ],
    ]


def test_what_is_known_of_a_mistake_is_told_once_for_all_names_and_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "toy.toml"
    file.write_text(KNOWN_OF_TOY)
    known = partial(Expectations.of_engine, expectations.read(file))
    monkeypatch.setattr(known_mistakes, "known", lambda _, engine: known(engine))
    other = version("v2", of("divided_by_dp")).report.model_copy(update={"engine": "fsdp"})
    found = [
        version("v2", of("not_divided"), of("multiplied_by_cp")),
        replace(FOUND[1], report=other),
    ]

    [one] = accusations(found)
    assert [*mistake_rows([one])] == [
        [
            "toy",
            "wrong gradient by default",
            "The loss is never divided ([report](reports/issues/toy-divided_by_dp.md))",
            "`--sum`",
            "[`loss.py:7`](https://example.org/blob/1/toy/loss.py#L7)",
            "[issue 1](https://example.org/issues/1)",
        ]
    ]
    assert one.elsewhere == ["1 on engine torch"]


def test_a_table_says_how_many_mistakes_there_are_and_where_none_was_found() -> None:
    clean = version("v4").report.model_copy(update={"adapter": "clean"})
    text = mistake_table([FOUND[1], replace(FOUND[1], report=clean)])

    assert text.startswith(
        "1 mistakes in 1 of 2 frameworks; none was found in clean. The worst 1 are:\n\n"
    )


def test_causes_are_derived_anew_from_findings_that_stay_as_they_are() -> None:
    report = version("v1", of("not_divided")).report
    [cause] = report.causes
    line = SuspectedLine(file="toy/loss.py", line=7, function="f", why="a sum")
    old = cause.model_copy(update={"statement": "in old words", "suspects": [line]})

    new = rederived(report.model_copy(update={"causes": [old]}), {})

    assert new.findings == report.findings
    assert new.causes == [cause.model_copy(update={"suspects": [line]})]


def test_a_mistake_of_another_name_is_renamed_wherever_it_is_named() -> None:
    said = wrong("weights/token_mean/a/dp1-cp2-mb1-thd", "policy_loss/divided_by_dp")
    diagnosis = Diagnosis(name="divided_by_dp", explanation="e", also=["divided_by_dp"])
    finding = said[0].model_copy(update={"clues": 0, "diagnosis": diagnosis})
    report = report_of([finding], clues=[said[1]])

    new = rederived(report, {"divided_by_dp": "divided_by_cp"})

    assert [one.name for one in new.causes] == ["divided_by_cp"]
    [renamed] = new.findings
    assert renamed.diagnosis is not None
    assert [renamed.diagnosis.name, *renamed.diagnosis.also] == ["divided_by_cp"] * 2
