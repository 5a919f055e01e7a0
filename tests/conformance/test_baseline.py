"""A gate against an earlier report fails on what is worse, and on nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from conformance.gate import Comparing, Outcome
from conformance.report import Report, Request, Selection, Verdict
from tests import command
from tests.conformance.test_expectations import crash, mismatch
from tests.conformance.test_journal import HEADER, finding

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.report import Finding

CHOSEN = ("--checks=weights", "--modes=token_mean", "-k", "uneven_lengths")


def report(*findings: Finding) -> Report:
    return Report.assemble(HEADER, findings, Selection(selected=len(findings), deselected=0))


def gate(folder: Path, *before: Finding) -> Comparing:
    return Comparing(folder / "old.json", report(*before), Request())


@pytest.mark.parametrize(
    ("before", "after", "outcome", "words"),
    [
        (finding("a"), finding("a"), Outcome.PASSES, ""),
        (finding("a"), mismatch("a", "x"), Outcome.FAILS, "worse than in old.json (conforms): mis"),
        (finding("a"), crash("a", "boom"), Outcome.FAILS, "worse than in old.json (conforms): cra"),
        (finding("a"), finding("a", Verdict.REFUSED), Outcome.FAILS, "worse"),
        (finding("a"), finding("a", Verdict.UNSUPPORTED), Outcome.FAILS, "worse"),
        (mismatch("a", "x"), mismatch("a", "x"), Outcome.KNOWN, "no worse than in old.json: mis"),
        (mismatch("a", "x"), mismatch("a", "y"), Outcome.KNOWN, "no worse"),
        (mismatch("a", "x"), crash("a", "boom"), Outcome.FAILS, "worse"),
        (mismatch("a", "x"), finding("a"), Outcome.PASSES, ""),
        (crash("a", "boom"), mismatch("a", "x"), Outcome.KNOWN, "no worse"),
        (finding("a", Verdict.UNSUPPORTED), mismatch("a", "x"), Outcome.FAILS, "worse"),
        (finding("b"), mismatch("a", "x"), Outcome.KNOWN, "not in old.json: mismatch"),
        (finding("b"), finding("a"), Outcome.PASSES, ""),
        (finding("b"), finding("a", Verdict.UNSUPPORTED), Outcome.SKIPPED, "unsupported"),
    ],
)
def test_only_what_is_worse_fails(
    tmp_path: Path, before: Finding, after: Finding, outcome: Outcome, words: str
) -> None:
    ruling = gate(tmp_path, before).ruling(after)

    assert ruling.outcome is outcome
    assert words in ruling.words


def test_a_larger_error_is_worse_and_a_smaller_one_is_not(tmp_path: Path) -> None:
    small, large = (mismatch("a", "x").model_copy(update={"error": error}) for error in (0.5, 0.75))

    assert gate(tmp_path, small).ruling(large).outcome is Outcome.FAILS
    assert gate(tmp_path, large).ruling(small).outcome is Outcome.KNOWN


def test_the_end_of_a_run_asks_to_renew_the_baseline_where_something_is_better(
    tmp_path: Path,
) -> None:
    listed = gate(tmp_path, mismatch("a", "x"), finding("b"))
    renew = f"renew {tmp_path / 'old.json'} with this report"

    assert renew in "\n".join(listed.lines(report(finding("a"), finding("b"))))
    for worse in (crash("b", "boom"), mismatch("b", "x")):
        assert renew not in "\n".join(listed.lines(report(finding("a"), worse)))
    assert renew not in "\n".join(listed.lines(report(mismatch("a", "x"), finding("b"))))


def test_a_run_fails_for_what_is_worse_than_the_baseline_alone(tmp_path: Path) -> None:
    right = command.run(tmp_path, "twolayouts", *CHOSEN)
    shutil.copy(right.report_path, tmp_path / "right.json")
    worse = command.run(tmp_path, "onetokenshort", *CHOSEN, "--baseline=right.json")
    shutil.copy(worse.report_path, tmp_path / "wrong.json")
    same = command.run(tmp_path, "onetokenshort", *CHOSEN, "--baseline=wrong.json")
    better = command.run(tmp_path, "twolayouts", *CHOSEN, "--baseline=wrong.json")

    assert worse.status == 1
    assert (
        "worse than in right.json (conforms): mismatch: off by a factor of 1.0294" in worse.output
    )
    assert "\nworse: 2\n" in worse.output
    assert same.status == 0, same.output
    assert "2 xfailed" in same.output
    assert better.status == 0, better.output
    assert "\nbetter: 2\n" in better.output
    assert "renew " in better.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--baseline=none.json",), "none.json cannot be read: No such file"),
        (("--baseline=torn.json",), "torn.json, line 1, is no JSON"),
        (("--baseline=other.json",), "is of toy on torch, and this run is of native on torch"),
        (("--baseline=other.json", "--expect=known.toml"), "are two gates; choose one"),
    ],
)
def test_a_baseline_that_cannot_be_one_stops_the_run_before_any_rank_starts(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "torn.json").write_text('{"schema": "rl')
    (tmp_path / "other.json").write_text(report(finding("a")).to_json())
    result = command.run(tmp_path, "twolayouts", *arguments)

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert complaint in result.output
    assert not result.report_path.exists()
