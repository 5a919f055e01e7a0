"""Findings that are listed as wrong are checked as strictly as right ones."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from conformance.comparing.expectations import draft, load
from conformance.comparing.gate import Expecting, GateDecision, Outcome, Strict
from conformance.comparing.known import expected
from conformance.findings.cause import Cause, Severity, SuspectedLine
from conformance.findings.errors import InvalidExpectationsError
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.report import Report
from conformance.findings.verdict import Verdict
from tests import command
from tests.findings import (
    CP,
    HEAD,
    MICRO,
    Said,
    crash,
    finding,
    mismatch,
    report,
    right,
    wrong,
)
from tests.tables import table

X, Y = "not_divided", "not_finite"

CRASH = {
    "name": "crashed",
    "findings": ["weights/token_mean/a/*"],
    "message": "KeyError: 'rollout'",
    "reason": "never logged",
    "link": "https://example.org/issues/1",
}

CAUSE = {
    "name": "multiplied_by_cp",
    "reason": "the gradient is averaged and added up",
    "link": "https://example.org/issues/2",
}


def toml(*entries: dict[str, Any]) -> str:
    """Entries in TOML, where strings and lists of strings are written as by Python's repr."""
    return "\n".join(
        "[[cause]]\n" + "\n".join(f"{k} = {v!r}" for k, v in entry.items() if v is not None)
        for entry in entries
    )


def expecting(folder: Path, *entries: dict[str, Any]) -> Expecting:
    path = folder / "known.toml"
    path.write_text(HEAD + toml(*entries))
    return Expecting(load(path))


@pytest.mark.parametrize(
    ("found", "outcome", "words"),
    [
        (
            crash("a", "KeyError: 'rollout'\nTraceback"),
            Outcome.KNOWN,
            "never logged (https://example.org/issues/1)",
        ),
        (
            crash("a", "TimeoutError: 120 s\nKeyError: 'rollout'"),
            Outcome.FAILS,
            "without the words",
        ),
        (finding("a"), Outcome.FAILS, "it conforms: fixed; remove it"),
        (finding("a", Verdict.UNSUPPORTED), Outcome.FAILS, "it is unsupported, not crashed"),
        (finding("a", Verdict.REFUSED), Outcome.FAILS, "it is refused, not crashed"),
        (finding("a", Verdict.NOT_DRIVEN), Outcome.SKIPPED, "not_driven"),
        (mismatch("a", X), Outcome.FAILS, "it is mismatch, not crashed"),
        (mismatch("b", X), Outcome.FAILS, "mismatch: relative error 1: 2 instead of 4"),
        (mismatch("b", "multiplied_by_cp"), Outcome.KNOWN, "averaged and added up (https://"),
        (crash("b", "KeyError: 'rollout'"), Outcome.FAILS, "crashed: KeyError: 'rollout'"),
        (finding("b"), Outcome.PASSES, ""),
        (finding("b", Verdict.REFUSED), Outcome.PASSES, ""),
        (finding("b", Verdict.UNSUPPORTED), Outcome.SKIPPED, "unsupported"),
    ],
)
def test_listed_findings_have_to_fail_as_listed_and_others_to_be_right_or_explained(
    tmp_path: Path, found: Finding, outcome: Outcome, words: str
) -> None:
    decision = expecting(tmp_path, CRASH, CAUSE).decision(found)

    assert decision.outcome is outcome
    assert words in decision.words


def test_a_failure_is_known_by_its_words_or_its_place(tmp_path: Path) -> None:
    here = crash("a", "KeyError: 'rollout'\nTraceback")
    entry = {name: value for name, value in CRASH.items() if name != "findings"}
    placed = entry | {"message": "loss.py:7 (reduce)", "link": None, "line": "fw/loss.py:7"}
    at_place = here.model_copy(update={"place": "fw/loss.py:7 (reduce)"})

    listed = expecting(tmp_path, placed | {"findings": CRASH["findings"]})
    assert listed.decision(at_place).outcome is Outcome.KNOWN
    assert listed.decision(here).outcome is Outcome.FAILS
    by_words = expecting(tmp_path, entry)
    assert by_words.decision(here).outcome is Outcome.KNOWN
    assert by_words.decision(crash("a", "ValueError")).outcome is Outcome.FAILS
    assert by_words.decision(finding("a")).outcome is Outcome.PASSES
    by_place = expecting(tmp_path, placed)
    assert by_place.decision(at_place).words == "never logged (fw/loss.py:7)"
    assert by_place.decision(here).outcome is Outcome.FAILS


def test_an_entry_may_be_of_one_engine_of_several(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    head = 'framework = "native"\nengine = ["torch", "other"]\n\n'
    path.write_text(head + toml(CAUSE | {"engine": ["other"]}))

    assert not expected(path, "native", "torch").mistakes
    assert expected(path, "native", "other").names == {CAUSE["name"]}
    with pytest.raises(InvalidExpectationsError, match="nothing is known of native"):
        expected(Path("known"), "native", "torch")


def cause_of(name: str, *findings: str, suspect: str | None = None, **fields: Any) -> Cause:
    """A cause with the findings of a report, and the line to look at first."""
    file, _, line = (suspect or "").rpartition(":")
    suspects = (
        [SuspectedLine(file=file, line=int(line), function="f", why="counts")] if suspect else []
    )
    return Cause(
        name=name,
        condition=fields.get("condition", []),
        severity=Severity.GRADIENT,
        statement=name,
        suspects=suspects,
        findings=[*findings],
    )


PLAIN = CAUSE | {"name": [X, Y], "reason": "plain"}
PLACED = CAUSE | {"name": Y, "reason": "placed", "suspect": ["loss.py:7", "a/count.py:3"]}
LOGGED = CAUSE | {"name": [X, Y], "reason": "logged", "check": ["metric.policy_loss"]}
BOTH = LOGGED | {"reason": "both", "suspect": ["fw/loss.py:7"]}
CONDITIONAL = CAUSE | {"name": X, "reason": "conditional", "condition": ["in token_mean"]}


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (cause_of(X, "weights/a"), "plain"),
        (cause_of(Y, "weights/a"), "plain"),
        (cause_of("multiplied_by_cp", "weights/a"), None),
        (cause_of(Y, "weights/a", suspect="fw/loss.py:7"), "placed"),
        (cause_of(Y, "weights/a", suspect="fw/a/count.py:3"), "placed"),
        (cause_of(Y, "weights/a", suspect="fw/ba/count.py:3"), "plain"),
        (cause_of(Y, "weights/a", suspect="fw/loss.py:71"), "plain"),
        (cause_of(X, "weights/a", suspect="fw/loss.py:7"), "plain"),
        (cause_of(X, "metric.policy_loss/a", "metric.policy_loss_with_entropy/b"), "logged"),
        (cause_of(X, "metric.policy_loss/a", "weights/b"), "plain"),
        (cause_of(X, "metric.policy_loss/a", suspect="x/fw/loss.py:7"), "both"),
        (cause_of(X, "weights/a", condition=["in token_mean"]), "conditional"),
    ],
)
def test_a_cause_has_the_entry_that_asks_for_most_of_what_it_is(
    tmp_path: Path, cause: Cause, reason: str | None
) -> None:
    entries = [PLAIN, PLACED, LOGGED, BOTH, CONDITIONAL]
    for given in (entries, entries[::-1]):
        entry = expecting(tmp_path, *given).expectations.of(cause)

        assert (entry and entry.reason) == reason


def test_a_finding_is_known_by_an_entry_of_its_check_and_told_by_that_of_its_cause(
    tmp_path: Path,
) -> None:
    gate = expecting(tmp_path, PLACED | {"check": ["metric"]}, CAUSE | {"name": X})
    elsewhere = mismatch("b", Y)
    placed = Finding(
        id="metric.loss/token_mean/b/dp1-cp1-mb1-bshd",
        verdict=Verdict.MISMATCH,
        diagnosis=elsewhere.diagnosis,
        error=1.0,
    )
    cause = cause_of(Y, placed.id, suspect="fw/loss.py:7")
    found = report(placed).model_copy(update={"causes": [cause]})

    assert gate.decision(elsewhere).outcome is Outcome.FAILS
    assert gate.decision(placed).outcome is Outcome.KNOWN
    assert [*gate.lines(found)] == [f"known (1): placed ({CAUSE['link']})"]


def test_a_run_that_was_not_traced_is_not_held_against_suspects(tmp_path: Path) -> None:
    gate = expecting(tmp_path, PLACED)
    found = report(mismatch("a", Y))
    untraced, here, elsewhere = (
        found.model_copy(update={"causes": [cause_of(Y, found.findings[0].id, suspect=line)]})
        for line in (None, "fw/loss.py:7", "fw/loss.py:8")
    )

    assert gate.expectations.of(untraced.causes[0]) is None
    assert gate.objection(untraced) is None
    assert gate.objection(here) is None
    assert "does not list this cause" in gate.objection(elsewhere)


def test_an_entry_has_the_address_of_its_line(tmp_path: Path) -> None:
    head = 'framework = "native"\nengine = "torch"\ncode = "https://example.org/blob/v1/"\n\n'
    places = [{"line": "fw/loss.py:7"}, {"line": "fw/loss.py"}, {}]
    own = {"line": "fw/loss.py:7", "code": "https://example.org/blob/v2/"}
    (tmp_path / "known.toml").write_text(head + toml(*(CRASH | one for one in [*places, own])))
    entries = load(tmp_path / "known.toml").failures

    assert [one.address for one in entries] == [
        "https://example.org/blob/v1/fw/loss.py#L7",
        None,
        None,
        "https://example.org/blob/v2/fw/loss.py#L7",
    ]
    assert expecting(tmp_path, CRASH | places[0]).expectations.failures[0].address is None


def test_an_entry_says_whom_it_reaches_and_what_is_known_upstream(tmp_path: Path) -> None:
    told = {"reach": "`x` above 1", "deliberate": "https://example.org/pull/3"}
    text = HEAD + toml(CAUSE | told) + "\nlooked_up = 2026-09-18"
    (tmp_path / "known.toml").write_text(text)
    [entry] = load(tmp_path / "known.toml").mistakes

    assert (entry.reach, entry.deliberate) == (told["reach"], told["deliberate"])
    assert entry.looked_up == date(2026, 9, 18)
    assert entry.upstream == "unknown"


def test_a_mistake_of_several_names_is_gone_once_it_shows_under_none(tmp_path: Path) -> None:
    names = [part.partition("/")[2] for part in (CP, MICRO)]
    gate = expecting(tmp_path, CAUSE | {"name": names})
    here = right("weights/token_mean/b/dp1-cp4-mb2-thd", CP, MICRO)
    under_one = right("weights/token_mean/b/dp1-cp1-mb2-thd", MICRO)

    assert gate.objection(report_of(gate, CP_RIGHT)) is None
    assert gate.objection(report_of(gate, CP_WRONG, under_one)) is None
    assert gate.objection(report_of(gate, here)).endswith("fixed; remove it")
    logged = expecting(tmp_path, CAUSE | {"name": names, "check": ["metric"]})
    assert logged.objection(report_of(logged, here)) is None


def test_without_a_file_all_that_is_wrong_fails() -> None:
    wrong_or_right = mismatch("b", "x"), crash("c", "y"), finding("d", Verdict.REFUSED)
    found = report(finding("a"), *wrong_or_right)

    assert [one.case for one in Strict().failing(found)] == ["b", "c"]
    assert not list(Strict().lines(found))


def test_the_end_of_a_run_counts_what_was_known_and_names_what_is_out_of_date(
    tmp_path: Path,
) -> None:
    listed = expecting(tmp_path, CRASH | {"findings": ["weights/token_mean/?/*"]})
    crashes = (crash(case, CRASH["message"]) for case in "bc")

    fixed, known = listed.lines(report(finding("a"), *crashes))

    assert fixed.startswith("weights/token_mean/a/dp1-cp1-mb1-bshd: ")
    assert "fixed; remove it" in fixed
    assert known == "known (2): never logged (https://example.org/issues/1)"


@pytest.mark.parametrize(
    ("kind", "changed", "words"), table("conformance/expectations.toml")["complaint"]
)
def test_an_entry_that_says_too_little_or_too_much_or_what_no_report_can_have_is_refused(
    tmp_path: Path, kind: str, changed: dict[str, Any], words: str
) -> None:
    entry = {"CRASH": CRASH, "CAUSE": CAUSE}[kind] | changed
    with pytest.raises(InvalidExpectationsError) as refused:
        expecting(tmp_path, {name: value for name, value in entry.items() if value is not False})

    assert words in str(refused.value)
    assert "known.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"cause = [", r"known\.toml is not TOML"),
        (b"\xff", r"known\.toml is not TOML"),
        (None, r"known\.toml cannot be read: No such file"),
        (b'framework = "native"', r"engine: Field required; say what the file is of, such as"),
        (b'engine = "torch"', r"framework: Field required; say what the file is of, such as"),
        (b'framework = "native"\nengine = []', r"; say what the file is of, such as framework"),
    ],
)
def test_a_file_that_is_none_or_does_not_say_what_it_is_of_is_refused(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / "known.toml").write_bytes(content)

    with pytest.raises(InvalidExpectationsError, match=complaint):
        load(tmp_path / "known.toml")


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([CRASH | {"findings": ["*/c/*"]}], r"'\*/c/\*' matches no finding"),
        (
            [CRASH, CRASH | {"findings": [finding("a").id], "reason": "other"}],
            "is listed twice, for 'never logged' and",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_and_a_finding_listed_twice_are_refused(
    tmp_path: Path, entries: list[dict[str, Any]], complaint: str
) -> None:
    ids = [finding("a").id, finding("b").id]

    expecting(tmp_path, CRASH).expectations.require_each_to_match_once(ids)
    with pytest.raises(InvalidExpectationsError, match=complaint):
        expecting(tmp_path, *entries).expectations.require_each_to_match_once(ids)


def test_draft_lists_all_that_is_wrong_and_is_complete_once_it_says_why(tmp_path: Path) -> None:
    hostile = crash("c", 'ValueError: "quoted" \\ back\x1b[31m')
    wrong_of_x = (mismatch(case, X) for case in "ae")
    found = report(*wrong_of_x, mismatch("b", Y), hostile, finding("d"))
    text = "\n".join(draft(found))
    path = tmp_path / "known.toml"
    path.write_text(text)

    with pytest.raises(InvalidExpectationsError, match="is a draft: 3 of its 3 entries have no"):
        load(path)

    path.write_text(
        text.replace('reason = ""', 'reason = "because"').replace(
            'link = ""', 'link = "https://example.org"'
        )
    )
    complete = Expecting(load(path))
    outcomes = [complete.decision(one).outcome for one in found.findings]
    assert len(complete.expectations.failures) == 1
    assert [mistake.names for mistake in complete.expectations.mistakes] == [(X,), (Y,)]
    complete.expectations.require_framework(found.adapter, found.engine)
    assert complete.objection(found) is None
    assert outcomes == [*[Outcome.KNOWN] * 3, Outcome.PASSES, Outcome.KNOWN]


@pytest.mark.parametrize(
    ("framework", "engines", "said"),
    [
        ("nativ", ["torch"], "nativ on torch"),
        ("skyrl", ["fsdp", "megatron"], "skyrl on fsdp and megatron"),
        ("native", ["fsdp"], "native on fsdp"),
        ("native", ["other", "torch"], None),
    ],
)
def test_a_file_is_of_one_framework_and_of_some_engines(
    tmp_path: Path, framework: str, engines: list[str], said: str | None
) -> None:
    head = f'framework = "{framework}"\nengine = {json.dumps(engines)}\n\n'
    (tmp_path / "known.toml").write_text(head)
    known = load(tmp_path / "known.toml")

    if said is None:
        known.require_framework("native", "torch")
        return
    words = rf"known\.toml is of {said}, and this run is of native on torch; give a file for these"
    with pytest.raises(InvalidExpectationsError, match=words):
        known.require_framework("native", "torch")


CP_WRONG = wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP)
CP_RIGHT = right("weights/token_mean/b/dp1-cp4-mb1-thd", CP)


def report_of(gate: Expecting, *said: Said) -> Report:
    return report(*said, watched=gate.watched)


def test_an_expected_cause_stands_for_all_findings_that_it_explains(tmp_path: Path) -> None:
    gate = expecting(tmp_path, CAUSE)
    report = report_of(gate, CP_WRONG)

    assert gate.decision(*CP_WRONG) == GateDecision(
        Outcome.KNOWN, f"{CAUSE['reason']} ({CAUSE['link']})"
    )
    assert gate.objection(report) is None
    assert [*gate.failing(report)] == []


def test_another_cause_fails_be_it_alike_in_every_single_finding(tmp_path: Path) -> None:
    gate = expecting(tmp_path, CAUSE)
    ambiguous = wrong("weights/token_mean/a/dp1-cp2-mb2-thd", CP, MICRO)
    other = wrong("weights/token_mean/c/dp1-cp1-mb2-thd", MICRO)

    assert gate.decision(*other).outcome is Outcome.FAILS
    assert gate.decision(*ambiguous).outcome is Outcome.KNOWN
    objection = gate.objection(report_of(gate, ambiguous, CP_RIGHT))
    assert "does not list this cause: an extra factor of the number of micro" in objection


def test_a_cause_may_have_the_name_of_another_that_it_cannot_be_told_from(tmp_path: Path) -> None:
    """A plan may be too small to distinguish two mistakes; the finding then has both names."""
    gate = expecting(tmp_path, CAUSE | {"name": MICRO.partition("/")[2]})
    ambiguous = wrong("weights/token_mean/a/dp1-cp2-mb2-thd", CP, MICRO)
    report = report_of(gate, ambiguous)

    assert [cause.name for cause in report.causes] == [CP.partition("/")[2]]
    assert gate.objection(report) is None
    assert (
        expecting(tmp_path, CAUSE | {"condition": ["in sample_mean"]}).objection(report) is not None
    )


def test_what_fits_an_unexplained_finding_by_chance_is_not_asked_for(tmp_path: Path) -> None:
    """As in ms-swift, where a known mistake fits a logged loss of one token only by chance."""
    finding, clues = wrong("weights/token_mean/a/dp1-cp2-mb1-thd", CP)
    unexplained = Diagnosis(name="unexplained", explanation="0.1 instead of 2", numbers={})
    finding = finding.model_copy(update={"diagnosis": unexplained})
    outcomes = [
        expecting(tmp_path, CAUSE | {"name": name}).decision(finding, clues).outcome
        for name in ("unexplained", MICRO.partition("/")[2])
    ]

    assert outcomes == [Outcome.KNOWN, Outcome.FAILS]


def test_a_cause_that_is_gone_or_has_another_condition_fails(tmp_path: Path) -> None:
    gate = expecting(tmp_path, CAUSE)
    mended = gate.objection(report_of(gate, CP_RIGHT))
    unseen = gate.objection(report_of(gate, right("weights/token_mean/a/dp1-cp1-mb1-thd")))

    assert mended.endswith("fixed; remove it")
    assert unseen is None
    conditional = expecting(tmp_path, CAUSE | {"condition": ["in sample_mean"]})
    other = conditional.objection(report_of(conditional, CP_WRONG))
    assert "does not list this cause" in other


def test_a_cause_is_gone_only_where_its_condition_holds(tmp_path: Path) -> None:
    """A right finding in another mode says nothing about a cause that shows in one mode."""
    elsewhere = expecting(tmp_path, CAUSE | {"condition": ["in sample_mean"]})
    assert elsewhere.objection(report_of(elsewhere, CP_RIGHT)) is None

    here = expecting(tmp_path, CAUSE | {"condition": ["in token_mean"]})
    objection = here.objection(report_of(here, CP_RIGHT))
    assert objection.endswith("fixed; remove it")


def test_a_pattern_may_be_of_what_this_run_leaves_out(tmp_path: Path) -> None:
    """A file covers a whole framework, but a run may cover a part of the suite, or a given step."""
    elsewhere = {"findings": ["metric.loss/sample_mean/*/dp2-cp2-mb2-thd"]}
    given = {"findings": ["weights/*/mine/*"], "reason": "my own"}
    (tmp_path / "known.toml").write_text(HEAD + toml(CRASH | elsewhere, CRASH | given))
    step = {"samples": [{"prompt_length": 1, "response_length": 2, "group": 0}]}
    case = {"schema": "rl-loss-conformance/case/1", "name": "mine", "steps": [step]}
    (tmp_path / "case.json").write_text(json.dumps(case))
    chosen = ("--collect-only", "--case-file=case.json", "--layout=dp1-cp1-mb1-bshd")

    result = command.run(tmp_path, "native", *chosen, "--expect=known.toml")

    assert result.status == 0, result.output


def test_a_pattern_without_a_finding_stops_the_run_before_any_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(HEAD + toml(CRASH | {"findings": ["weights/*/typo/*"]}))

    result = command.run(tmp_path, "twolayouts", "--expect=known.toml")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "'weights/*/typo/*' matches no finding of this adapter and engine" in result.output
    assert not result.report_path.exists()


def test_a_run_with_known_faults_passes_and_a_mended_one_or_another_file_fails(
    tmp_path: Path,
) -> None:
    (tmp_path / "known.toml").write_text(HEAD + toml(CAUSE | {"name": "count_off_by_one"}))
    (tmp_path / "other.toml").write_text(HEAD.replace("native", "skyrl"))
    chosen = ("--modes=token_mean", "-k", "uneven or odd_groups")

    known = command.run(tmp_path, "onetokenshort", *chosen, "--expect=known.toml")
    mended = command.run(tmp_path, "twolayouts", *chosen, "--expect=known.toml")
    other = command.run(tmp_path, "native", *chosen, "--collect-only", "--expect=other.toml")

    assert known.status == 0, known.output
    assert "known (" in known.output
    assert "xfailed" in known.output
    assert mended.status == 1
    assert "count_off_by_one (the gradient is averaged and added up): fixed; remove it" in " ".join(
        mended.output.split()
    )
    assert other.status == pytest.ExitCode.USAGE_ERROR
    assert "other.toml is of skyrl on torch, and this run" in other.output
