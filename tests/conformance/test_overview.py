"""The pages about committed reports name each cause of a framework once, the worst first."""

from dataclasses import replace
from pathlib import Path

from adapters.contract.description import Departure, DepartureKind
from conformance.findings.cause import Harm
from conformance.findings.finding import Finding
from conformance.findings.verdict import Check, Verdict
from conformance.views.overview.pages import (
    CommittedReport,
    cause_rows,
    kinds_of_causes,
    wrong_of_seen,
)
from conformance.views.overview.reword import reworded
from tests.conformance.pages import finding_of, report_of


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


def test_a_framework_has_a_row_with_its_causes_by_kind_and_their_bug_reports() -> None:
    crash = finding_of("a", verdict=Verdict.CRASHED, message="KeyError: [1")
    other = version("v2", of("not_divided"), crash).report.model_copy(update={"engine": "fsdp"})
    found = [replace(FOUND[1], report=other), FOUND[1]]
    header, _, row = kinds_of_causes(found).splitlines()

    assert (
        header
        == "| framework | version | wrong gradient by default | step that cannot run | advice |"
    )
    assert row == (
        "| toy | v2 | [token losses are summed but never normalised]"
        "(reports/issues/toy-fsdp-not_divided.md)"
        " | [KeyError: 1](reports/issues/toy-fsdp-crashed.md)"
        " | [1 form](reports/causes.md#advice) |"
    )


def test_a_framework_without_causes_is_a_row_too() -> None:
    assert kinds_of_causes([version("v4")]).splitlines()[-1] == "| toy | v4 |"


def test_sentences_of_ours_are_rewritten_and_the_words_of_frameworks_are_not() -> None:
    words = "token losses are summed but never normalised"
    crash = finding_of("a", verdict=Verdict.CRASHED, message=f"RuntimeError: {words}")
    report = version("v1", of("not_divided"), crash).report
    departures = [
        Departure(DepartureKind.SET, "a seed", words),
        Departure(DepartureKind.SET, f"{words} to 0", "e"),
    ]
    report = report.model_copy(update={"departures": departures})

    new = reworded(report, {words: "a sum", "e": "explained"})

    assert [one.statement for one in new.causes] == ["a sum", f"RuntimeError: {words}"]
    assert [one.why for one in new.departures] == ["a sum", "explained"]
    assert new.departures[1].what == departures[1].what
    assert [one.diagnosis and one.diagnosis.explanation for one in new.findings] == [
        None,
        "explained",
    ]
    assert reworded(new, {"a sum": words, "explained": "e"}) == report
