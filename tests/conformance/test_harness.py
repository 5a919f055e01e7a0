"""Faults of the harness itself: if a run contradicts itself, none of its verdicts stands."""

import subprocess
from pathlib import Path

import pytest

from adapters.contract import Layout
from conformance import cli
from conformance.comparing.gate import Strict
from conformance.comparing.report_file import load, write
from conformance.expected.step_context import ExpectedNumber
from conformance.findings.errors import InconsistentExpectationError
from conformance.runs.recorder import Consistency
from conformance.runs.versions import history
from conformance.sources.source import Commit
from conformance.views import report_formats
from conformance.views.versions import diff_formats, history_table
from reference.aggregation import AuxiliaryAggregation, Mode
from tests import command
from tests.conformance.given import BY_SAMPLE, UNEVEN, Given
from tests.findings import finding, mismatch, report

TWO = Layout(dp=2, micro_batches=2)


def test_numbers_of_one_name_and_case_must_be_equal() -> None:
    consistency = Consistency()
    consistency.require("odd_groups", "a", [("clip fraction", 0.25), ("entropy", 0.5)])
    consistency.require("odd_groups", "b", [("clip fraction", 0.25)])
    consistency.require("one_token", "c", [("clip fraction", 0.75)])

    with pytest.raises(InconsistentExpectationError) as fault:
        consistency.require("odd_groups", "d", [("entropy", 0.5), ("clip fraction", 0.26)])

    assert "clip fraction of case odd_groups is expected to be 0.25 by a and 0.26 by d" in str(
        fault.value
    )


def expected(given: Given) -> tuple[ExpectedNumber, ...]:
    return given.judged(given.weights).expected


def test_expected_weights_have_one_name_whatever_the_layout_and_the_cut() -> None:
    whole, cut = Given(), Given(layout=TWO, forward_pass_of_token=BY_SAMPLE)

    assert expected(whole) == expected(cut)
    assert expected(Given(mode=Mode.CONSTANT)) != expected(Given(mode=Mode.CONSTANT, divisor=8.0))


def test_expected_weights_of_micro_batches_are_named_after_the_layout() -> None:
    given = Given(layout=TWO, forward_pass_of_token=BY_SAMPLE)
    how = AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN
    averaged, otherwise_cut = (
        Given(layout=TWO, forward_pass_of_token=held).context.of_term(how).fingerprint
        for held in (BY_SAMPLE, UNEVEN)
    )

    where = f"of equal micro-batches on {given.layout}"
    assert averaged.name == f"weights of step 0, token_mean {where}"
    assert averaged.name == otherwise_cut.name
    assert averaged.value != otherwise_cut.value


CLIP_FRACTION = (
    "--checks=metric",
    "--modes=sample_mean,token_mean",
    "--layout=dp1-cp1-mb2-thd",
    "-k",
    "clip_fraction",
)


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.thorough)], ids=["alone", "xdist"]
)
def test_cut_that_depends_on_the_mode_stops_the_run(tmp_path: Path, workers: tuple[str]) -> None:
    result = command.run(tmp_path, "misreportingcuts", *CLIP_FRACTION, *workers)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "fault of the harness: clip_fraction in clip_fraction of off_policy" in result.output
    assert "no verdict of this run can be relied on" in result.output
    assert not result.report.complete
    assert result.report.fault is not None
    assert "no verdict of this run can be relied on" in result.report.fault


def test_adapter_that_tells_of_no_cut_where_one_is_needed_stops_the_run(tmp_path: Path) -> None:
    result = command.run(tmp_path, "silentaboutcuts", *CLIP_FRACTION)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "fault of the harness: UnknownCutError: " in result.output
    assert result.report.fault.startswith("UnknownCutError: ")


FAULT = "UnknownCutError: token_mean of micro-batches is declared"


@pytest.fixture
def faulty_report(tmp_path: Path) -> Path:
    """A report of a run that a fault stopped after it had found something wrong."""
    path = tmp_path / "faulty.json"
    write(report(mismatch("a", "not_divided"), missing=1, fault=FAULT), path)
    return path


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_fault_is_shown_before_anything_that_was_found(
    faulty_report: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", f"--format={form}", str(faulty_report)]) == 0

    shown = capsys.readouterr().out
    assert 0 < shown.index(f"fault of the harness: {FAULT}") < shown.index("token losses")


def test_only_the_fault_is_annotated_on_github(faulty_report: Path) -> None:
    faulty = load(faulty_report)

    assert [*report_formats.error_commands(faulty, faulty.findings)] == [
        f"::error::fault of the harness: {FAULT}"
    ]
    assert [*diff_formats.gate_lines(Strict(), faulty)] == []


@pytest.mark.parametrize(
    "command_line",
    [
        ["diff", "right.json", "faulty.json"],
        ["diff", "faulty.json", "right.json"],
        ["html", "faulty.json", "-o", "page.html"],
        ["issue", "faulty.json", "1"],
        ["expect", "faulty.json"],
    ],
    ids=" ".join,
)
def test_no_conclusion_is_drawn_from_a_run_that_a_fault_stopped(
    command_line: list[str],
    faulty_report: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(faulty_report.parent)
    write(report(finding("a")), Path("right.json"))

    assert cli.main(command_line) == cli.USAGE_ERROR
    output = capsys.readouterr()
    assert output.out == ""
    assert "faulty.json: no verdict of this report can be relied on" in output.err
    assert FAULT in output.err


def test_run_is_not_compared_with_a_baseline_that_a_fault_stopped(faulty_report: Path) -> None:
    result = command.run(faulty_report.parent, "twolayouts", "--baseline=faulty.json")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert FAULT in result.output


def test_history_shows_the_fault_in_the_place_of_findings(
    faulty_report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: str, *line: str, **__: object) -> subprocess.CompletedProcess[str]:
        [path] = (word.removeprefix("--report=") for word in line if word.startswith("--report="))
        Path(path).write_bytes(faulty_report.read_bytes())
        return subprocess.CompletedProcess(line, 3, stdout="9 failed, 10 passed in 2 s")

    commit = Commit(ref="v1", revision="1" * 40, date="2026-01-01", subject="Fix")
    with monkeypatch.context() as patched:
        patched.setattr(history, "_pytest", stopped)
        rows = [*history.run(history.CommitRuns(adapter="toy"), [commit], None)]

    assert [*history_table.as_text(rows)] == [
        "1111111111 v1: 2026-01-01 Fix",
        f"  fault of the harness: {FAULT}",
    ]
