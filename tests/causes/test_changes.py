"""Two reports of one framework differ first of all in their causes."""

from __future__ import annotations

import json

from conformance.comparing.assembly import assembled
from conformance.comparing.cause_changes import cause_changes
from conformance.comparing.diff import difference
from conformance.findings.report import Report, Selection
from conformance.views import diff_formats
from tests.causes.test_find import CP, EMPTY, Said, right, wrong
from tests.conformance.test_journal import HEADER

A = "weights/token_mean/a/dp1-cp2-mb1-thd"
B = "weights/token_mean/b/dp1-cp2-mb1-thd"
OTHER = "weights/sample_mean/a/dp1-cp2-mb1-thd"


def report(*said: Said) -> Report:
    findings = [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)]
    clues = [clues for _, clues in said]
    return assembled(HEADER, findings, clues, Selection(selected=len(said), deselected=0))


def fates(old: Report, new: Report) -> list[tuple[str, str]]:
    return [(change.fate, change.findings) for change in cause_changes(old, new)]


def test_a_cause_is_the_same_whatever_findings_it_explains() -> None:
    assert fates(report(wrong(A, CP), wrong(B, CP)), report(wrong(A, CP), right(B))) == [
        ("the same", "2 -> 1")
    ]


def test_a_cause_is_gone_new_or_under_another_condition() -> None:
    always, never = report(wrong(A, CP), wrong(OTHER, CP)), report(right(A, CP), right(OTHER, CP))
    in_one_mode = report(wrong(A, CP), right(OTHER, CP))

    assert fates(always, never) == [("gone", "2")]
    assert fates(never, always) == [("new", "2")]
    [change] = cause_changes(always, in_one_mode)
    assert change.fate == "changed"
    assert change.statement.endswith(
        "in token_mean (it was: multiplied once too often by cp, the"
        " number of context-parallel ranks)"
    )


def test_what_is_new_comes_first_in_every_format() -> None:
    found = difference(report(wrong(A, CP), right(B)), report(right(A, CP), wrong(B, EMPTY)))
    new = "cause, new: a sample without active tokens is counted as one token (1 findings)"

    text = [*diff_formats.as_text(found)]
    assert text.index(new) < next(
        place for place, line in enumerate(text) if line.startswith("cause, gone: multiplied")
    )
    assert any(
        line.startswith("- ") and "cause, new: a sample without active" in line
        for line in "\n".join(diff_formats.as_markdown(found)).splitlines()
    )
    document = json.loads("\n".join(diff_formats.as_json(found)))
    assert [one["fate"] for one in document["causes"]] == ["new", "gone"]
