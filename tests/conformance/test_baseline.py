"""A gate against an earlier report fails on findings that are worse, or wrong and not in it."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.contract import Depth, Layout
from conformance.comparing.gate import Comparing, Outcome, Strict
from conformance.corpus.cases import Case
from conformance.findings.finding import GENERATED, Finding
from conformance.findings.report import Request
from conformance.findings.verdict import Verdict
from conformance.plan.matrix import MatrixCell
from reference.aggregation import Aggregation, Mode
from tests import command
from tests.conformance.weighed import found
from tests.findings import HEAD, HEADER, crash, finding, mismatch, report

UNKNOWN = "not looked at in old.json, so not known to be wrong"

CHOSEN = ("--checks=weights", "--modes=token_mean", "-k", "uneven_lengths")


def native_report(*findings: Finding, **fields: object) -> str:
    """A report that may be a baseline of `native` and of its broken variants."""
    header = HEADER.model_copy(update={"adapter": "native", **fields})
    return report(*findings, header=header).to_json()


def gate(folder: Path, *before: Finding) -> Comparing:
    return Comparing(folder / "old.json", report(*before), Request())


@pytest.mark.parametrize(
    ("before", "after", "outcome", "words"),
    [
        (finding("a"), finding("a"), Outcome.PASSES, ""),
        (finding("a"), mismatch("a", "x"), Outcome.FAILS, "worse than in old.json (conforms): mis"),
        (finding("a"), crash("a", "boom"), Outcome.FAILS, "worse than in old.json (conforms): cra"),
        (mismatch("a", "x"), mismatch("a", "y"), Outcome.KNOWN, "no worse than in old.json: mis"),
        (mismatch("a", "x"), finding("a"), Outcome.PASSES, ""),
        (crash("a", "boom"), mismatch("a", "x"), Outcome.KNOWN, "no worse"),
        (mismatch("a", "x"), finding("a", Verdict.UNSUPPORTED), Outcome.SKIPPED, "unsupported"),
        (finding("a"), finding("a", Verdict.NOT_DRIVEN), Outcome.SKIPPED, "not_driven"),
        *(
            (before, mismatch("a", "x"), Outcome.FAILS, f"{UNKNOWN}: mismatch")
            for before in (
                finding("b"),
                finding("a", Verdict.UNSUPPORTED),
                finding("a", Verdict.NOT_DRIVEN),
            )
        ),
        (finding("b"), crash("a", "boom"), Outcome.FAILS, f"{UNKNOWN}: crashed"),
        (finding("b"), finding("a"), Outcome.PASSES, ""),
        (finding("b"), finding("a", Verdict.UNSUPPORTED), Outcome.SKIPPED, "unsupported"),
    ],
)
def test_only_what_is_worse_fails(
    tmp_path: Path, before: Finding, after: Finding, outcome: Outcome, words: str
) -> None:
    decision = gate(tmp_path, before).decision(after)

    assert decision.outcome is outcome
    assert words in decision.words


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
    chosen = (*CHOSEN, "--no-trace")
    right = command.run(tmp_path, "twolayouts", *chosen)
    shutil.copy(right.report_path, tmp_path / "right.json")
    worse = command.run(tmp_path, "onetokenshort", *chosen, "--baseline=right.json", "--tb=short")
    shutil.copy(worse.report_path, tmp_path / "wrong.json")
    same = command.run(tmp_path, "onetokenshort", *chosen, "--baseline=wrong.json")
    better = command.run(tmp_path, "twolayouts", *chosen, "--baseline=wrong.json")

    assert worse.status == 1
    assert (
        "worse than in right.json (conforms): mismatch: off by a factor of 1.0294" in worse.output
    )
    assert "\nworse: 2\n" in worse.output
    assert "right.json, which has 2 of this run's 2 findings\n" in worse.output
    assert same.status == 0, same.output
    assert "2 xfailed" in same.output
    assert "\nOLD and NEW are of the same version, 0.1.0\n" in same.output
    assert better.status == 0, better.output
    assert "\nbetter: 2\n" in better.output
    assert "renew " in better.output


def cells(*cases: str, layouts: Sequence[Layout] = (Layout(),)) -> list[MatrixCell]:
    return [
        MatrixCell(
            aggregation=Aggregation(Mode.TOKEN_MEAN),
            case=Case(name=name, catches="", steps=()),
            layout=layout,
            depth=Depth.STEP,
        )
        for name in cases
        for layout in layouts
    ]


@pytest.mark.parametrize("held", ["", "a", "ab", "abc", "abcdefghi"])
def test_at_least_half_of_what_is_chosen_is_in_the_baseline(tmp_path: Path, held: str) -> None:
    """A baseline may have more findings: one of the whole suite also serves for a part of it."""
    refusal = gate(tmp_path, *map(finding, held)).refusal(cells(*"abcd"))

    if len(held) >= 2:
        assert refusal is None
    else:
        assert f"old.json has {len(held)} of the 4 findings of this run" in refusal


def test_a_baseline_of_something_else_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    """The baselines have findings of another layout, depth or case."""
    layouts = (Layout(dp=2), Layout(cp=2))
    deeper = finding("a").model_copy(update={"depth": Depth.LOSS})
    elsewhere = gate(tmp_path, finding("a")).refusal(cells("a", layouts=layouts))
    above = gate(tmp_path, deeper).refusal(cells("a"))
    case = gate(tmp_path, finding("a")).refusal(cells("b"))

    assert "(it has nothing of layout dp2-cp1-mb1-bshd, layout dp1-cp2-mb1-bshd)" in elsewhere
    assert "(it has nothing of depth step); give a report of the same --depth" in above
    assert "(it has nothing of case b)" in case


def test_every_kind_of_finding_is_found_again_in_its_own_report(tmp_path: Path) -> None:
    """The findings include generated cases, logs, and `constant` with a given divisor."""
    kinds = "uneven_lengths or generated or logging or poison or no_gradient or again"
    of_all = ("--layout=dp1-cp1-mb1-bshd", "--modes=constant:64,token_mean", "--examples=1")
    chosen = (*of_all, "-k", kinds)
    older = command.run(tmp_path, "native", *chosen, "--report=old.json")
    same = command.run(tmp_path, "native", *chosen, "--baseline=old.json")

    assert older.status == same.status == 0, older.output + same.output
    [(held, made)] = re.findall(r"which has (\d+) of this run's (\d+) findings", same.output)
    assert held == made
    assert {one.check for one in same.report.findings} >= {"weights", "metric", "logging"}
    assert any(one.case == GENERATED for one in same.report.findings)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.processes)])
def test_a_run_that_compares_little_is_refused_before_any_rank_starts(
    tmp_path: Path, workers: Sequence[str]
) -> None:
    (tmp_path / "elsewhere.json").write_text(native_report(finding("uneven_lengths")))
    chosen = ("--baseline=elsewhere.json", "--depth=loss", "--checks=weights", *workers)
    refused = command.run(tmp_path, "native", *chosen)

    assert refused.status == pytest.ExitCode.USAGE_ERROR, refused.output
    assert "(it has nothing of depth loss); give a report of the same" in refused.output
    assert "s to start" not in refused.output
    assert not (tmp_path / "reports" / "latest" / "native.json").exists()


def test_a_run_that_compares_one_finding_is_made(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text(native_report(finding("uneven_lengths")))
    chosen = ("--baseline=elsewhere.json", *CHOSEN, "--layout=dp1-cp1-mb1-bshd")
    taken = command.run(tmp_path, "twolayouts", *chosen)

    assert taken.status == 0, taken.output


@pytest.mark.parametrize(
    "gated", [(), ("--expect=known.toml",), ("--baseline=old.json",)], ids=" ".join
)
def test_a_run_that_exercises_nothing_fails_whatever_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gated: Sequence[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "known.toml").write_text(HEAD)
    before = found(Verdict.UNSUPPORTED, mode=Mode.PROMPT_MEAN, case="uneven_lengths")
    (tmp_path / "old.json").write_text(native_report(before))
    chosen = ("--checks=weights", "--layout=dp1-cp1-mb1-bshd", "-k", "uneven_lengths", *gated)

    nothing = command.run(tmp_path, "withoutpromptmean", "--modes=prompt_mean", *chosen)

    words = "nothing was exercised: all 1 findings are unsupported"
    assert nothing.status == pytest.ExitCode.TESTS_FAILED, nothing.output
    assert f"\nFAILED: {words}" in nothing.output
    assert f"\n::error::{words}" in nothing.output
    assert words in (tmp_path / "summary.md").read_text()


def test_what_was_exercised_in_part_was_exercised(tmp_path: Path) -> None:
    some = report(finding("a", Verdict.UNSUPPORTED), finding("b", Verdict.REFUSED))

    assert Strict().objection(some) is None
    assert Strict().objection(report()) is None
    assert Strict().objection(report(finding("a", Verdict.UNSUPPORTED))) is not None
    assert gate(tmp_path).objection(report(finding("a", Verdict.UNSUPPORTED))) is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--baseline=none.json",), "none.json cannot be read: No such file"),
        (("--baseline=torn.json",), "torn.json is no report (Invalid JSON: "),
        (("--baseline=other.json",), "is of toy on torch, and this run is of native on torch"),
        (("--baseline=narrow.json",), "is of bfloat16, and this run is of float32, which is held"),
        (("--baseline=other.json", "--expect=known.toml"), "are two gates; choose one"),
    ],
)
def test_a_baseline_that_cannot_be_one_stops_the_run_before_any_rank_starts(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "torn.json").write_text('{"schema": "rl')
    (tmp_path / "other.json").write_text(report(finding("a")).to_json())
    environment = HEADER.environment.model_copy(update={"dtype": "bfloat16"})
    (tmp_path / "narrow.json").write_text(native_report(finding("a"), environment=environment))
    result = command.run(tmp_path, "twolayouts", *arguments)

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert complaint in result.output
    assert not result.report_path.exists()
