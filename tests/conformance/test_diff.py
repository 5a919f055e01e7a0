"""Changes between two reports are told finding by finding, exactly, and shown without harm."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from adapters.contract import Depth, Layout
from conformance.comparing.diff import Change, ChangeKind, Difference, difference, load_difference
from conformance.comparing.report_file import write
from conformance.findings.errors import NothingToCompareError
from conformance.findings.finding import GENERATED, Finding
from conformance.findings.groups import FindingFilter
from conformance.findings.report import Header, Report
from conformance.findings.verdict import Check, Verdict
from conformance.views.versions.diff_formats import (
    ALL,
    MOST_CHARACTERS,
    as_json,
    as_markdown,
    as_text,
)
from reference.aggregation import Conventions, DenominatorMask, LoggedMean, Mode
from tests.conformance.reports import TOLERANCE, findings, headers, pairs, reports
from tests.conformance.weighed import found, wrong
from tests.findings import HEADER, report

MIRRORED = {
    ChangeKind.WORSE: ChangeKind.BETTER,
    ChangeKind.BETTER: ChangeKind.WORSE,
    ChangeKind.OTHER_DIAGNOSIS: ChangeKind.OTHER_DIAGNOSIS,
    ChangeKind.CHANGED: ChangeKind.CHANGED,
    ChangeKind.UNSEEN: ChangeKind.UNSEEN_BEFORE,
    ChangeKind.UNSEEN_BEFORE: ChangeKind.UNSEEN,
    ChangeKind.VANISHED: ChangeKind.APPEARED,
    ChangeKind.APPEARED: ChangeKind.VANISHED,
    ChangeKind.ONLY_OLD: ChangeKind.ONLY_NEW,
    ChangeKind.ONLY_NEW: ChangeKind.ONLY_OLD,
    ChangeKind.SAME: ChangeKind.SAME,
}

ALONE_IN_OLD = (ChangeKind.VANISHED, ChangeKind.ONLY_OLD)
ALONE_IN_NEW = (ChangeKind.APPEARED, ChangeKind.ONLY_NEW)

TAGS = re.compile(r"</?(?:details|summary|code)>")

CODE = re.compile(r"<code>[^<]*</code>|(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")

FEW = settings(max_examples=30)


def crashed(message: str, **fields: Any) -> Finding:
    return found(Verdict.CRASHED, message=message, **fields)


def declined(message: str) -> Finding:
    return found(Verdict.DECLINED, message=message)


NOT_DRIVEN = found(Verdict.NOT_DRIVEN, message="the configuration has no group 'engine'")


def kinds(found: Difference) -> dict[ChangeKind, int]:
    return dict(Counter(change.kind for change in found.changes))


def text(found: Difference) -> str:
    return "\n".join(as_text(found))


def markdown(found: Difference) -> str:
    return "\n".join(as_markdown(found))


UPWARDS = [
    found(Verdict.CONFORMS),
    found(Verdict.REFUSED, message="no"),
    wrong(0.25),
    wrong(0.5),
    crashed("RuntimeError: boom"),
]
"""Findings from best to worst."""

MALFORMED: list[dict[str, Any]] = [
    {"check": Check.ARGUMENTS, "subject": "divisor_nan"},
    {"check": Check.LOGGING},
    {"check": Check.SHARDING, "subject": "boundary_gap"},
]


@pytest.mark.parametrize("rank", range(len(UPWARDS) - 1))
def test_each_verdict_is_worse_than_those_before_it(rank: int) -> None:
    for better in UPWARDS[: rank + 1]:
        assert Change(better, UPWARDS[rank + 1]).kind is ChangeKind.WORSE
        assert Change(UPWARDS[rank + 1], better).kind is ChangeKind.BETTER


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (found(error=0.0), found(error=TOLERANCE), ChangeKind.SAME),
        (found(), found(Verdict.UNSUPPORTED, message="no mode"), ChangeKind.WORSE),
        (found(Verdict.UNSUPPORTED), found(), ChangeKind.BETTER),
        (found(Verdict.UNSUPPORTED), wrong(), ChangeKind.UNSEEN_BEFORE),
        (wrong(), found(Verdict.UNSUPPORTED), ChangeKind.UNSEEN),
        (crashed("no"), found(Verdict.UNSUPPORTED), ChangeKind.UNSEEN),
        (found(), NOT_DRIVEN, ChangeKind.UNSEEN),
        (found(Verdict.ADVICE), NOT_DRIVEN, ChangeKind.UNSEEN),
        (found(Verdict.REFUSED), NOT_DRIVEN, ChangeKind.UNSEEN),
        (wrong(), NOT_DRIVEN, ChangeKind.UNSEEN),
        (crashed("no"), NOT_DRIVEN, ChangeKind.UNSEEN),
        (NOT_DRIVEN, wrong(), ChangeKind.UNSEEN_BEFORE),
        (found(Verdict.UNSUPPORTED), NOT_DRIVEN, ChangeKind.CHANGED),
        (NOT_DRIVEN, NOT_DRIVEN, ChangeKind.SAME),
        (found(Verdict.REFUSED), found(Verdict.UNSUPPORTED), ChangeKind.CHANGED),
        (
            found(Verdict.REFUSED, message="no"),
            found(Verdict.REFUSED, message="No"),
            ChangeKind.SAME,
        ),
        (wrong(0.5), wrong(0.5 + 1.4 * TOLERANCE), ChangeKind.SAME),
        (wrong(0.5), wrong(0.5 + 1.6 * TOLERANCE), ChangeKind.WORSE),
        (wrong(59.0), wrong(59.0 + 50 * TOLERANCE), ChangeKind.SAME),
        (wrong(0.5, tolerance=0.0), wrong(0.5 + 1e-7, tolerance=0.0), ChangeKind.SAME),
        (wrong(0.5, tolerance=0.0), wrong(0.6, tolerance=0.0), ChangeKind.WORSE),
        (wrong(0.5, "not_divided"), wrong(0.5), ChangeKind.OTHER_DIAGNOSIS),
        (wrong(0.5, "not_divided"), wrong(0.4), ChangeKind.BETTER),
        (wrong(None, "not_divided"), wrong(0.4), ChangeKind.OTHER_DIAGNOSIS),
        (wrong(None), wrong(0.4), ChangeKind.CHANGED),
        (wrong(None), wrong(None), ChangeKind.SAME),
        (crashed("KeyError: 1\nline 1"), crashed("KeyError: 1\nline 2"), ChangeKind.SAME),
        (crashed("KeyError: 1"), crashed("KeyError: 2"), ChangeKind.SAME),
        (crashed("KeyError: 1"), crashed("ValueError: 1"), ChangeKind.OTHER_DIAGNOSIS),
        (crashed("no", place="a.py:1 (f)"), crashed("no", place="a.py:2 (f)"), ChangeKind.SAME),
        (
            crashed("no", place="a.py:1 (f)"),
            crashed("no", place="a.py:1 (g)"),
            ChangeKind.OTHER_DIAGNOSIS,
        ),
        (declined("no mode a"), declined("no mode b"), ChangeKind.OTHER_DIAGNOSIS),
        # Refusing malformed input is as good as conforming.
        *(
            pair
            for of in MALFORMED
            for pair in (
                (found(**of), found(Verdict.REFUSED, **of), ChangeKind.CHANGED),
                (found(Verdict.REFUSED, **of), found(Verdict.UNSUPPORTED, **of), ChangeKind.WORSE),
            )
        ),
    ],
)
def test_a_pair_of_findings_is_compared_by_rank_then_error_then_cause(
    old: Finding, new: Finding, kind: ChangeKind
) -> None:
    assert Change(old, new).kind is kind
    assert Change(new, old).kind is MIRRORED[kind]


@given(pairs())
def test_every_finding_is_in_one_change_and_the_reverse_says_the_reverse(
    both: tuple[Report, Report],
) -> None:
    old, new = both
    there, back = difference(old, new), difference(new, old)
    changes = there.changes

    assert Counter(c.old.id for c in changes if c.old) == Counter(f.id for f in old.findings)
    assert Counter(c.new.id for c in changes if c.new) == Counter(f.id for f in new.findings)
    for change in changes:
        compared = change.old is not None and change.new is not None
        assert compared == (change.kind not in (*ALONE_IN_OLD, *ALONE_IN_NEW))
        assert (change.new is None) == (change.kind in ALONE_IN_OLD)
        assert (change.part is not None) == (
            change.kind in (ChangeKind.ONLY_OLD, ChangeKind.ONLY_NEW)
        )
    assert [(MIRRORED[c.kind], c.new, c.old, c.part) for c in changes] == [
        (c.kind, c.old, c.new, c.part) for c in back.changes
    ]
    assert {(s.section, s.name, s.new, s.old) for s in there.settings} == set(back.settings)
    assert there.compared == back.compared


@given(reports())
def test_a_report_does_not_differ_from_itself(same: Report) -> None:
    itself = difference(same, same)

    assert set(kinds(itself)) <= {ChangeKind.SAME}
    assert not itself.worse
    assert not itself.settings
    assert not itself.groups()


@given(pairs())
def test_groups_and_parts_hold_every_change_once(both: tuple[Report, Report]) -> None:
    old, new = both
    whole = difference(old, new)
    listed = Counter(group.kind for group in whole.groups() for _ in group.changes)
    listed += Counter(
        {
            kind: sum(whole.parts(kind).values())
            for kind in (ChangeKind.ONLY_OLD, ChangeKind.ONLY_NEW)
        }
    )

    assert listed == {
        kind: count for kind, count in kinds(whole).items() if kind is not ChangeKind.SAME
    }
    for group in whole.groups():
        assert group.example in group.changes
        assert sum(group.modes.values()) == len(group.changes)


def test_the_largest_group_of_the_worst_kind_comes_first() -> None:
    old = report(*(found(case=case) for case in "abc"), wrong(case="d"), wrong(case="e"))
    new = report(
        crashed("KeyError: 1", case="a"),
        *(wrong(case=case) for case in "bc"),
        *(found(case=case) for case in "de"),
    )
    groups = difference(old, new).groups()

    assert [(group.kind, len(group.changes)) for group in groups] == [
        (ChangeKind.WORSE, 2),
        (ChangeKind.WORSE, 1),
        (ChangeKind.BETTER, 2),
    ]


def test_an_example_takes_the_fewest_ranks() -> None:
    layouts = [Layout(dp=4), Layout(cp=2), Layout(dp=2, cp=2)]
    old = report(*(found(layout=layout) for layout in layouts))
    [group] = difference(old, report(*(wrong(layout=layout) for layout in layouts))).groups()

    assert group.example.finding.layout == Layout(cp=2)


@pytest.mark.parametrize(
    ("fields", "dimension", "value"),
    [
        ({"check": Check.METRIC}, "check", "metric"),
        ({"mode": Mode.CONSTANT}, "mode", "constant"),
        ({"layout": Layout(dp=2)}, "layout", "dp2-cp1-mb1-bshd"),
        ({"case": "b"}, "case", "b"),
        ({"depth": Depth.LOSS}, "depth", "loss"),
    ],
)
def test_what_one_side_alone_looked_at_is_kept_apart(
    fields: dict[str, Any], dimension: str, value: str
) -> None:
    more = {"case": "c"} if dimension == "depth" else {}
    old, new = report(found()), report(found(), wrong(**(fields | more)))
    for there, kind in (
        (difference(old, new), ChangeKind.ONLY_NEW),
        (difference(new, old), ChangeKind.ONLY_OLD),
    ):
        assert kinds(there) == {ChangeKind.SAME: 1, kind: 1}
        [(part, count)] = there.parts(kind).items()
        assert (part.dimension, part.value, count) == (dimension, value, 1)
        assert f"{dimension}s" in text(there)
        assert not there.worse


def test_a_subject_that_one_side_alone_looked_at_is_kept_apart() -> None:
    log = found(check=Check.METRIC)
    there = difference(report(log), report(log, found(check=Check.METRIC, subject="entropy")))

    assert [part.value for part in there.parts(ChangeKind.ONLY_NEW)] == ["metric.entropy"]


def test_parts_are_those_of_a_check() -> None:
    """If only another check ran on a layout, this check was not meant to run on the layout."""
    both = [found(), found(check=Check.METRIC), found(check=Check.METRIC, layout=Layout(dp=2))]
    there = difference(report(*both, found(layout=Layout(dp=2))), report(*both))

    assert kinds(there) == {ChangeKind.SAME: 3, ChangeKind.ONLY_OLD: 1}


def test_what_vanishes_or_appears_within_what_both_looked_at_is_no_part() -> None:
    grid = [found(case=case, layout=Layout(dp=dp)) for case in "ab" for dp in (1, 2)]
    gone, come = (
        difference(report(*grid), report(*grid[1:])),
        difference(report(*grid[1:]), report(wrong(), *grid[1:])),
    )

    assert kinds(gone) == {ChangeKind.SAME: 3, ChangeKind.VANISHED: 1}
    assert "vanished: 1" in text(gone)
    assert kinds(come) == {ChangeKind.SAME: 3, ChangeKind.APPEARED: 1}
    assert "1 appeared, 1 of them wrong" in text(come)
    assert "| appeared | 1 | 1 |" in markdown(come)


@pytest.mark.parametrize(
    ("request_", "finding"),
    [
        ({"examples": 10}, found(case=GENERATED)),
        ({"seed": "1"}, found(case=GENERATED)),
        ({"divisor": 64.0}, found(mode=Mode.CONSTANT)),
    ],
)
def test_what_follows_from_other_options_is_not_compared(
    request_: dict[str, Any], finding: Finding
) -> None:
    asked = HEADER.request.model_copy(update=request_)
    header = HEADER.model_copy(update={"request": asked})
    there = difference(report(finding, found()), report(finding, found(), header=header))

    assert kinds(there) == {ChangeKind.SAME: 1, ChangeKind.ONLY_OLD: 1, ChangeKind.ONLY_NEW: 1}
    assert {setting.section for setting in there.settings} == {"options"}


def test_conventions_and_environment_are_compared() -> None:
    environment = HEADER.environment.model_copy(
        update={"torch": "3", "dependencies": {"ray": "2"}, "stubs": ["wandb"]}
    )
    conventions = Conventions(
        denominator_mask=DenominatorMask.ORIGINAL,
        logged_advantages=LoggedMean(mode=Mode.TOKEN_MEAN),
    )
    header = HEADER.model_copy(update={"environment": environment, "conventions": conventions})
    there = difference(report(found()), report(found(), header=header))

    assert [
        (setting.section, setting.name, setting.old, setting.new) for setting in there.settings
    ] == [
        ("conventions", "denominator_mask", "modified", "original"),
        ("conventions", "logged_advantages", None, "token_mean of active tokens"),
        ("environment", "torch", "2", "3"),
        ("dependencies", "ray", None, "2"),
        ("stubs", "wandb", None, "stubbed"),
    ]
    assert not there.worse
    for shown in (text(there), markdown(there)):
        assert "modified" in shown
        assert "stubbed" in shown


@pytest.mark.parametrize("form", [text, markdown])
def test_a_run_that_was_stopped_is_said_to_be(form: Callable[[Difference], str]) -> None:
    whole, stopped = report(found(), found(case="b")), report(found(), missing=1)

    assert "NEW was stopped before the last of its 2 findings" in form(difference(whole, stopped))
    assert "OLD was stopped before the last of its 2 findings" in form(difference(stopped, whole))
    assert "stopped" not in form(difference(whole, whole))


COMMIT = {"kind": "git", "revision": "f" * 40, "version": None, "ref": "main"}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({}, {}, "version, 1"),
        ({}, {"version": "2"}, None),
        (COMMIT, COMMIT | {"ref": "refs/pull/1/head"}, f"commit, {'f' * 40}"),
        (COMMIT, COMMIT | {"kind": "checkout", "ref": None}, f"commit, {'f' * 40}"),
        (COMMIT, COMMIT | {"kind": "checkout", "dirty": True}, None),
        (COMMIT, COMMIT | {"revision": "e" * 40}, None),
        ({}, COMMIT, None),
    ],
)
def test_one_commit_on_both_sides_is_said(
    old: dict[str, Any], new: dict[str, Any], same: str | None
) -> None:
    there = difference(*(report(found(), header=header_of(source)) for source in (old, new)))

    assert there.same_source == same
    assert json.loads("".join(as_json(there)))["same_source"] == same
    for shown in (text(there), markdown(there)):
        assert (f"\nOLD and NEW are of the same {same}\n" in shown) == (same is not None)


def test_two_engines_of_one_commit_are_two_things() -> None:
    other = HEADER.model_copy(update={"engine": "fsdp"})

    assert difference(report(found()), report(found(), header=other)).same_source is None


def header_of(source: dict[str, Any]) -> Header:
    return HEADER.model_copy(update={"source": HEADER.source.model_copy(update=source)})


def test_frameworks_are_put_side_by_side_and_none_is_called_worse() -> None:
    other = HEADER.model_copy(update={"adapter": "other"})
    there = difference(report(found()), report(wrong(), header=other))

    assert there.worse
    assert not there.is_of_one_framework
    for shown in (text(there), markdown(there)):
        assert "differ, OLD fares better" in shown
        assert "worse" not in shown


def test_text_says_what_is_compared_and_what_became_of_it() -> None:
    old = report(found(), found(case="b"), wrong(0.5, case="c"), wrong(case="d"))
    new = report(wrong(), found(case="b"), wrong(0.75, case="c"), wrong(case="d"))
    shown = text(difference(old, new))

    assert "OLD  toy 1, engine torch" in shown
    assert "4 findings compared" in shown
    assert "2 worse" in shown
    assert "2 the same, 1 of them wrong" in shown
    assert "ok -> MISMATCH divided_by_cp: weights 1 (token_mean 1)" in shown
    assert "divided_by_cp, by a larger factor: weights 1 (token_mean 1)" in shown
    assert (
        "relative error 0.5: every weight is wrong [divided_by_cp] -> relative error 0.75" in shown
    )


def test_the_gist_names_one_finding_of_a_group_and_all_names_every_one() -> None:
    cases = [f"case_{number}" for number in range(40)]
    old = report(*(found(case=case) for case in cases))
    new = report(*(wrong(case=case, name=f"mistake_{case[-1]}") for case in cases))
    gist, whole = ("\n".join(as_text(difference(old, new), *limits)) for limits in ([], [ALL]))

    assert sum(case in gist for case in re.findall(r"/(case_\d+)/", gist)) == 4
    assert "6 more: see --all" in gist
    assert all(f"/{case}/" in whole for case in cases)


@FEW
@given(pairs())
def test_text_has_no_signs_that_steer_a_terminal(both: tuple[Report, Report]) -> None:
    old, new = both
    assert all(line.isprintable() for line in as_text(difference(old, new), ALL))


@FEW
@given(pairs())
def test_markdown_fits_and_nothing_in_it_has_an_effect(both: tuple[Report, Report]) -> None:
    old, new = both
    shown = markdown(difference(old, new))
    outside = CODE.sub("", shown)

    assert len(shown) <= MOST_CHARACTERS
    assert "<" not in TAGS.sub("", outside)
    assert not re.search(r"[`@#\\\[\]]|octocat|http", outside)
    for line in outside.splitlines():
        assert line.count("|") == (4 if line.startswith("|") else 0)


@pytest.mark.parametrize("length", range(20))
def test_markdown_leaves_whole_groups_out_and_counts_them(length: int) -> None:
    cases = [f"case_{number}" for number in range(400)]
    old = report(found(case="fine"), *(found(case=case) for case in cases))
    crashes = (crashed(f"{case}{'|' * length}", case=case) for case in cases)
    new = report(found(case="fine"), *crashes)
    shown = markdown(difference(old, new.model_copy(update={"causes": []})))
    [left_out] = re.findall(r"Groups that do not fit: (\d+);", shown)

    assert MOST_CHARACTERS - 1_000 < len(shown) <= MOST_CHARACTERS
    assert shown.count("<details>") == shown.count("</details>")
    assert shown.count("<details>") + int(left_out) == len(cases)


@FEW
@given(pairs())
def test_json_counts_and_lists_what_changed(both: tuple[Report, Report]) -> None:
    old, new = both
    there = difference(old, new)
    document = json.loads("\n".join(as_json(there)))

    assert document["schema"] == "rl-loss-conformance/diff/1"
    assert {kind: count for kind, count in document["counts"].items() if count} == kinds(there)
    listed = Counter(change["kind"] for change in document["changes"])
    for part in document["parts"]:
        listed[part["kind"]] += part["findings"]
    assert +listed == {
        kind: count for kind, count in kinds(there).items() if kind is not ChangeKind.SAME
    }
    for change in document["changes"]:
        for side in ("old", "new"):
            assert change[side] is None or Finding.model_validate(change[side]).picture is None


@FEW
@given(headers(), findings())
def test_files_are_compared_in_what_is_chosen(
    tmp_path_factory: pytest.TempPathFactory, header: Header, finding: Finding
) -> None:
    path = tmp_path_factory.mktemp("reports") / "report.json"
    write(report(finding, header=header), path)
    other = frozenset(Check) - {finding.check}

    assert (
        load_difference(path, path, FindingFilter(checks=frozenset({finding.check}))).compared == 1
    )
    with pytest.raises(NothingToCompareError, match=r"report.json .* have nothing in common"):
        load_difference(path, path, FindingFilter(checks=other))
