"""Findings that are made again: which are chosen, and what is said of one that has changed."""

from __future__ import annotations

from pathlib import Path

from conformance.comparing.assembly import assembled
from conformance.findings.finding import Diagnosis
from conformance.findings.report import Selection
from conformance.findings.verdict import Verdict
from tests.conformance.test_journal import HEADER, finding
from tests.reproduction import difference, sample


def mismatch(case: str, name: str):
    return finding(case, Verdict.MISMATCH).model_copy(
        update={"diagnosis": Diagnosis(name=name, explanation="")}
    )


FINDINGS = [
    finding("a"),
    *(mismatch(case, "common") for case in "bcdefgh"),
    mismatch("i", "rare"),
]
REPORT = assembled(HEADER, FINDINGS, [], Selection(selected=9, deselected=0))
SAMPLED = [(Path("toy/v1.json"), REPORT)]


def test_every_kind_of_wrong_finding_is_chosen_before_a_second_of_any() -> None:
    chosen = sample(SAMPLED, 2)

    assert {one.finding.diagnosis.name for one in chosen if one.finding.diagnosis} == {
        "common",
        "rare",
    }


def test_what_conforms_is_not_chosen_and_the_choice_is_the_same_again() -> None:
    chosen = [one.name for one in sample(SAMPLED, 200)]

    assert len(chosen) == 8
    assert chosen == [one.name for one in sample(SAMPLED, 200)]
    assert chosen != [one.name for one in sample(SAMPLED, 200, seed=1)]


def test_difference_names_the_fields_that_changed() -> None:
    before, after = mismatch("a", "common"), mismatch("a", "rare")

    assert difference(before, [before]) == ""
    assert difference(before, []) == "0 findings instead of one"
    assert difference(before, [after]).startswith("diagnosis: {'name': 'common'")
