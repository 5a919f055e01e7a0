"""Two reports of one framework differ first of all in their causes."""

import json
from pathlib import Path

import pytest

from conformance.comparing.cause_changes import cause_changes
from conformance.comparing.diff import difference, load_difference
from conformance.comparing.report_file import write
from conformance.findings.cause import Severity
from conformance.findings.finding import Diagnosis
from conformance.findings.groups import FindingFilter, shared_causes
from conformance.findings.report import Report
from conformance.findings.verdict import Check, Verdict
from conformance.views.versions import diff_formats
from tests.findings import (
    CP,
    EMPTY,
    OTHER,
    UNEXPLAINED,
    A,
    B,
    Said,
    explained,
    recaused,
    report,
    right,
    with_verdict,
    wrong,
)


def fates(old: Report, new: Report) -> list[tuple[str, str]]:
    return [(change.fate, change.findings) for change in cause_changes(difference(old, new))]


def test_a_cause_is_the_same_whatever_findings_it_explains() -> None:
    assert fates(report(wrong(A, CP), wrong(B, CP)), report(wrong(A, CP), right(B))) == [
        ("the same", "2 -> 1")
    ]


def test_a_cause_is_gone_new_or_under_another_condition() -> None:
    always, never = report(wrong(A, CP), wrong(OTHER, CP)), report(right(A, CP), right(OTHER, CP))
    in_one_mode = report(wrong(A, CP), right(OTHER, CP))

    assert fates(always, never) == [("gone", "2")]
    assert fates(never, always) == [("new", "2")]
    [change] = cause_changes(difference(always, in_one_mode))
    assert change.fate == "changed"
    assert change.statement.endswith(
        "in token_mean (it was: an extra factor of cp (context-parallel ranks))"
    )


def test_what_is_new_comes_first_in_every_format() -> None:
    found = difference(report(wrong(A, CP), right(B)), report(right(A, CP), wrong(B, EMPTY)))
    new = "cause, new: a sample without active tokens is counted as one token (1 findings)"

    text = [*diff_formats.as_text(found)]
    assert text.index(new) < next(
        place for place, line in enumerate(text) if line.startswith("cause, gone: an extra factor")
    )
    assert any(
        line.startswith("- ") and "cause, new: a sample without active" in line
        for line in "\n".join(diff_formats.as_markdown(found)).splitlines()
    )
    document = json.loads("\n".join(diff_formats.as_json(found)))
    assert [one["fate"] for one in document["causes"]] == ["new", "gone"]


@pytest.mark.parametrize(
    ("found", "became"),
    [
        ([with_verdict(Verdict.CRASHED)], "now 1 crashed, 1 not run"),
        ([with_verdict(Verdict.REFUSED)], "now 1 refused, 1 not run"),
        ([with_verdict(Verdict.UNSUPPORTED)], "now 1 unsupported, 1 not run"),
        ([with_verdict(Verdict.NOT_DRIVEN)], "now 1 not driven, 1 not run"),
        ([right(A), with_verdict(Verdict.CRASHED, B)], "now 1 right, 1 crashed"),
        ([right(A), wrong(B)], "now 1 right, 1 wrong in another way"),
        ([wrong(A, EMPTY)], "now 1 wrong without it, 1 not run"),
        ([right(A)], "now 1 right, 1 not run"),
        ([right(OTHER)], "now 2 not run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cause_is_not_gone_unless_each_of_its_findings_is_without_it(
    found: list[Said], became: str
) -> None:
    changes = cause_changes(difference(report(wrong(A, CP), wrong(B, CP)), report(*found)))

    [change] = [one for one in changes if one.new is None]
    assert (change.fate, change.became) == ("not known to be gone", became)


@pytest.mark.parametrize("verdict", [*Verdict])
def test_only_what_conforms_or_is_advice_is_right_again(verdict: Verdict) -> None:
    found = [wrong(A)] if verdict is Verdict.MISMATCH else [with_verdict(verdict)]
    changes = cause_changes(difference(report(wrong(A, CP)), report(*found)))

    is_gone = [one.fate == "gone" for one in changes if one.new is None]
    assert is_gone == [verdict in (Verdict.CONFORMS, Verdict.ADVICE)]


def test_a_cause_is_gone_where_what_is_not_refused_is_right() -> None:
    found = report(right(A), with_verdict(Verdict.REFUSED, B))
    changes = cause_changes(difference(report(wrong(A, CP), wrong(B, CP)), found))

    assert [(one.fate, one.became) for one in changes] == [("gone", "now 1 right, 1 refused")]


def test_a_cause_is_gone_where_another_mistake_alone_explains_what_is_wrong() -> None:
    assert fates(report(wrong(A, CP)), report(wrong(A, EMPTY))) == [("new", "1"), ("gone", "1")]


def test_a_cause_that_occurred_beside_another_is_gone_where_the_other_alone_is_left() -> None:
    both = explained(A, [CP], [EMPTY])
    old = report(both, wrong(B, EMPTY), wrong(OTHER, CP))
    new = report(wrong(A, EMPTY), wrong(B, EMPTY), right(OTHER, CP))

    assert fates(old, new) == [("gone", "2"), ("the same", "2")]


@pytest.mark.parametrize(
    "verdict", [Verdict.CRASHED, Verdict.REFUSED, Verdict.UNSUPPORTED, Verdict.NOT_DRIVEN]
)
def test_a_cause_of_what_was_not_looked_at_before_is_not_new(verdict: Verdict) -> None:
    found = cause_changes(difference(report(with_verdict(verdict)), report(wrong(A, CP))))

    [change] = [one for one in found if one.old is None]
    assert (change.fate, change.became) == (
        "not looked at before",
        f"before 1 {verdict.replace('_', ' ')}",
    )


def crash(line: int, function: str = "step", words: str = "KeyError: 3") -> Said:
    place = f"fw/loss.py:{line} ({function})"
    return with_verdict(Verdict.CRASHED, message=words, place=place)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (crash(9), ["the same"]),
        (crash(7, words="KeyError: 4"), ["the same"]),
        (crash(7, function="reduce"), ["not looked at before", "not known to be gone"]),
        (crash(7, words="ValueError: 3"), ["not looked at before", "not known to be gone"]),
    ],
    ids=["other line", "other number", "other function", "other error"],
)
def test_crashes_are_paired_by_place_and_error_whatever_the_line(
    later: Said, expected: list[str]
) -> None:
    assert [fate for fate, _ in fates(report(crash(7)), report(later))] == expected


def test_a_crash_is_gone_where_the_step_is_trained_again() -> None:
    assert fates(report(crash(7)), report(wrong(A, CP))) == [
        ("not looked at before", "1"),
        ("gone", "1"),
    ]


def test_what_no_mistake_explains_is_paired_by_its_pattern() -> None:
    def unexplained(pattern: str) -> Report:
        finding, clues = wrong(A)
        diagnosis = UNEXPLAINED.model_copy(update={"explanation": pattern})
        return report((finding.model_copy(update={"diagnosis": diagnosis}), clues))

    one, other = "weights are 2 to 3 times, one ratio per rank", "weights are 2 times, per sample"
    assert [fate for fate, _ in fates(unexplained(one), unexplained(other))] == [
        "new",
        "not known to be gone",
    ]
    assert [fate for fate, _ in fates(unexplained(one), unexplained(one))] == ["the same"]


def test_causes_are_those_of_the_findings_that_are_chosen(tmp_path: Path) -> None:
    """The finding that the filter leaves out shows another mistake, and does not count."""
    logged = wrong("metric/token_mean/a/dp1-cp2-mb1-thd", EMPTY)
    for name, first in (("old", wrong(A, CP)), ("new", right(A, CP))):
        write(report(first, logged), tmp_path / name)
    chosen = FindingFilter(checks=frozenset({Check.WEIGHTS}))
    found = load_difference(tmp_path / "old", tmp_path / "new", chosen)

    assert [one.fate for one in cause_changes(found)] == ["gone"]


def test_what_is_not_known_to_be_gone_is_said_in_every_format() -> None:
    old, new = report(wrong(A, CP)), report(with_verdict(Verdict.CRASHED, message="KeyError"))
    found = difference(old, new)
    for shown in (diff_formats.as_text(found), diff_formats.as_markdown(found)):
        [line] = [line for line in "\n".join(shown).splitlines() if "not known to be gone" in line]
        assert "(1 findings; now 1 crashed)" in line
    document = json.loads("\n".join(diff_formats.as_json(found)))
    assert [one["became"] for one in document["causes"]] == ["", "now 1 crashed"]


def test_causes_of_one_version_with_the_same_words_are_told_once_with_all_findings() -> None:
    both = report(wrong(A, CP), wrong(B, EMPTY))
    first, second = both.causes
    alike = second.model_copy(
        update={"name": first.name, "condition": first.condition, "severity": Severity.LOGGED}
    )
    [shared] = shared_causes([both.model_copy(update={"causes": [first, alike]})])

    assert shared.cause is first
    assert [one.id for one in shared.newest.findings] == [*first.findings, *second.findings]


def test_a_cause_with_another_name_is_the_same_if_its_findings_are() -> None:
    """A cause may be named after findings that one of the reports lacks."""
    finding, clues = wrong(A, CP)
    told = finding.model_copy(update={"diagnosis": Diagnosis(name=CP, explanation="")})
    one = report((told, clues))

    assert fates(one, recaused(one, name=EMPTY)) == [("the same", "1"), ("the same", "1")]
