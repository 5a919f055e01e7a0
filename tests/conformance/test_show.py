"""A report in short says what is wrong, worst first, on any terminal and in any format."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import cli
from conformance.comparing.known import entry_of
from conformance.comparing.report_file import load, write
from conformance.findings.cause import Clues, Severity
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.groups import FindingFilter, finding_groups
from conformance.findings.verdict import Check, Verdict
from conformance.views.report_formats import as_text
from reference.aggregation import Mode
from tests import command
from tests.conformance.pages import report_of
from tests.findings import crash, finding, mismatch

REPORTS = command.ROOT / "reports"
REPORT = REPORTS / "miles" / "main-31f1ca9-fsdp.json.gz"

HOSTILE = "[bold]not markup[/bold] \x1b[31mred\x07"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    findings = [
        finding("a"),
        mismatch("b", "not_divided").model_copy(update={"error": 3.0, "agreement": 0.25}),
        mismatch("c", "not_divided").model_copy(update={"error": 0.9, "agreement": 0.1}),
        mismatch("d", "not_finite").model_copy(update={"error": None}),
        crash("e", f"ValueError: {HOSTILE}\nTraceback"),
        finding("f", Verdict.REFUSED).model_copy(update={"message": "no"}),
    ]
    path = tmp_path / "small.json"
    write(report_of(findings), path)
    return path


def shown(*arguments: str | Path, **environment: str) -> str:
    """The output of `show` through a pipe, as another program sees it."""
    return subprocess.run(
        [Path(sys.executable).with_name("rl-loss-conformance"), "show", *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_line_of_an_audited_cause_is_shown_instead_of_suspects() -> None:
    report = load(REPORTS / "skyrl" / "v0.3.0.json.gz")
    wrong = [one for one in report.causes if one.severity is not Severity.ADVICE and one.suspects]
    lines = [entry.line for one in wrong if (entry := entry_of(report, one)) and entry.line]

    text = "\n".join(as_text(report))

    assert len(lines) == len(wrong) > 0
    assert all(line in "".join(text.split()) for line in lines)
    assert not re.search("^ *look at ", text, re.MULTILINE)


def test_groups_come_the_worst_first_with_the_worst_example(small: Path) -> None:
    text = shown(small)
    headings = re.findall(r"^(?:MISMATCH|CRASHED) \d+ × .*$", text, re.MULTILINE)

    assert headings[:2] == [
        "MISMATCH 1 × numbers are NaN or infinite [not_finite]",
        "MISMATCH 2 × token losses are summed but never normalised [not_divided]",
    ]
    assert headings[2].startswith("CRASHED 1 × ValueError: [bold]not markup[/bold] ")
    assert "for example weights/token_mean/b/dp1-cp1-mb1-bshd: off by a factor of 4" in text
    assert "\n  pytest --adapter=toy --engine=torch --layout=dp1-cp1-mb1-bshd -k '[weights" in text
    assert "1 conforms, 3 mismatch, 1 refused, 1 crashed" in text
    assert not re.search(r"[\x1b\x07]", text), "which steer a terminal"


def test_causes_come_first_and_each_form_of_advice_once(tmp_path: Path) -> None:
    advice = [
        Finding(
            id=f"arguments.{name}/constant/a/dp1-cp1-mb1-thd",
            verdict=Verdict.ADVICE,
            diagnosis=Diagnosis(name="accepted", explanation=f"{name} is accepted"),
        )
        for name in ("divisor_nan", "divisor_zero")
    ]
    refused = [
        finding(case, Verdict.REFUSED).model_copy(update={"message": f"ValueError: no {number}"})
        for number, case in enumerate("ab")
    ]
    report = report_of([*advice, *refused, mismatch("c", "not_divided")])
    write(report, tmp_path / "report.json")
    text = shown(tmp_path / "report.json", COLUMNS="1000")
    document = json.loads(shown(tmp_path / "report.json", "--format=json"))

    assert text.count("bad input is accepted") == 1
    assert "divisor_nan is accepted" in text
    assert "divisor_zero" not in text
    assert text.index("never normalised") < text.index("advice (2)") < text.index("1 MISMATCH")
    assert "\nrefused: ValueError: no 0 (2)\n" in text
    assert [one["findings"] for one in document["advice"]] == [[one.id for one in advice]]


def test_example_is_an_ordinary_step_and_the_command_runs_the_smallest() -> None:
    empty = Clues(terms=["policy_loss"], conditions=["where a sample has no active token"])
    ordinary = Clues(terms=["policy_loss"])
    cases = ("a_small", "b_ordinary")
    found = [
        mismatch(case, "not_divided").model_copy(update={"clues": number})
        for number, case in enumerate(cases)
    ]
    large = mismatch("production_step", "not_divided")

    for findings, example in ((found, "b_ordinary"), ([*found, large], "production_step")):
        report = report_of(findings, clues=[empty, ordinary])
        [group] = finding_groups(report)

        assert (group.smallest.case, group.example.case) == ("a_small", example)
        text = "\n".join(as_text(report))
        assert f"for example {group.example.id}: " in text
        assert f"-k '[{group.smallest.id}]'" in text


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colour_is_for_terminals_that_want_it(
    small: Path, environment: dict[str, str], coloured: bool
) -> None:
    plain = dict.fromkeys(("NO_COLOR", "FORCE_COLOR"), "")
    text = shown(small, **plain | environment, TERM="xterm-256color")

    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) == coloured


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal_but_for_the_commands(width: int) -> None:
    text = shown(REPORT, COLUMNS=str(width), FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)

    for line in plain.splitlines():
        assert len(line) <= width or line.startswith("  pytest ")


def test_choice_leaves_out_all_else(small: Path) -> None:
    text = shown(REPORT, "--checks=rejection,logging", "--modes=token_mean", "--verdicts=mismatch")
    report = FindingFilter(
        verdicts=frozenset({Verdict.MISMATCH}),
        modes=frozenset({Mode.TOKEN_MEAN}),
        checks=frozenset({Check.REJECTION, Check.LOGGING}),
    ).of(load(REPORT))

    assert report.findings
    assert {(f.check, f.mode, f.verdict) for f in report.findings} == {
        (Check.REJECTION, Mode.TOKEN_MEAN, Verdict.MISMATCH)
    }
    assert f"\n{len(report.findings)} mismatch\n" in text
    assert "weights" not in text
    assert "sample_mean" not in text


def test_json_has_every_wrong_finding_once_and_counts_every_finding() -> None:
    document: dict[str, Any] = json.loads(shown(REPORT, "--format=json"))
    report = load(REPORT)
    wrong = {f.id for f in report.findings if f.verdict in (Verdict.MISMATCH, Verdict.CRASHED)}
    listed = [one for cause in document["causes"] for one in cause["findings"]]

    assert len(wrong) > 40
    assert {*listed} >= wrong
    assert document["summary"]["verdicts"] == report.summary.verdicts
    cells = [cell for row in document["matrix"].values() for cell in row.values()]
    assert sum(sum(cell.values()) for cell in cells) == len(report.findings)


def test_markdown_folds_details_and_neutralises_what_others_say(small: Path) -> None:
    text = shown(small, "--format=markdown")

    assert "| weights | 1 ok, 3 MISMATCH, 1 refused, 1 CRASHED |" in text
    assert text.count("<details>") == text.count("</details>") == 3
    assert "\x1b" not in text


def test_files_that_are_no_reports_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = tmp_path / "torn.json"
    torn.write_text("{")

    assert cli.main(["show", str(torn)]) == cli.USAGE_ERROR
    assert "torn.json is no report (Invalid JSON: " in capsys.readouterr().err
    assert cli.main(["diff", str(torn), str(REPORT)]) == cli.USAGE_ERROR
    assert "torn.json" in capsys.readouterr().err


def test_diff_tells_by_its_exit_status_whether_something_is_worse(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = tmp_path / "fixed.json"
    write(report_of(finding(case) for case in "abcdef"), fixed)

    assert cli.main(["diff", str(small), str(fixed)]) == 0
    assert "better: 5" in capsys.readouterr().out
    assert cli.main(["diff", str(fixed), str(small), "--all"]) == cli.WORSE
    assert "worse: 5" in capsys.readouterr().out
    assert cli.main(["diff", str(small), str(small), "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["same"] == 6
    assert cli.main(["diff", str(small), str(REPORT)]) == cli.USAGE_ERROR
    assert "have nothing in common" in capsys.readouterr().err


def test_a_report_is_shown_without_numpy() -> None:
    """Importing numpy takes longer than reading a report."""
    code = (
        "import sys; from conformance import cli;"
        f" cli.main(['show', {os.fspath(REPORT)!r}]);"
        " sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
