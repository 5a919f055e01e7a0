"""Runs as a user at a terminal sees them: pytest in processes of their own."""

import getpass
import signal
import socket
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from adapters import (
    skyrl,  # noqa: F401 - torch does not survive a second import
)
from adapters.contract import Layout
from conformance.comparing.report_file import load
from conformance.corpus.cases import CORPUS
from conformance.findings.report import Selection
from conformance.findings.verdict import Verdict
from conformance.plugin.controller import NOT_DRIVEN
from reference.aggregation import Mode
from tests import command
from tests.tables import table
from tests.waiting import processes_of_session, wait_for

ONE_CASE = ("--checks=weights", "-k", "uneven_lengths")


def cases_on(*layouts: str) -> int:
    """The number of pairs of a layout and a case of the corpus that runs on it."""
    return sum(case.runs_on(Layout.parse(layout)) for case in CORPUS for layout in layouts)


def test_run_prints_the_summary_and_writes_the_report(tmp_path: Path) -> None:
    modes = (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)
    chosen = ("--layout=dp1-cp1-mb2-thd", "--checks=weights", f"--modes={','.join(modes)}")
    result = command.run(tmp_path, "native", *chosen)

    assert result.status == 0, result.output
    assert "native 0.1.0, engine torch, depth step, cpu/gloo" in result.output
    cases = cases_on("dp1-cp1-mb2-thd")
    findings = cases * len(modes)
    assert result.output.count(f"{cases} ok") == len(modes)
    report = result.report
    assert report.complete
    assert report.summary.verdicts == {"conforms": findings}
    assert report.selection == Selection(selected=findings, deselected=0)
    assert {finding.depth for finding in report.findings} == {"step"}
    assert str(tmp_path) not in result.report_path.read_text()


def test_a_layout_of_sixty_four_ranks_runs_on_this_machine(tmp_path: Path) -> None:
    layout = ("--max-ranks=64", "--layout=dp8-cp8-mb1-thd")
    result = command.run(tmp_path, "native", *layout, "--modes=token_mean", *ONE_CASE)

    assert result.status == 0, result.output
    assert result.report.summary.verdicts == {"conforms": 1}


def test_every_finding_is_a_test_that_pytest_options_apply_to(tmp_path: Path) -> None:
    name = "weights/token_mean/one_token/dp1-cp1-mb1-bshd"
    narrow = ("--checks=weights", "-k", name)
    listing = command.run(tmp_path, "twolayouts", "--collect-only", "-q", *narrow)
    result = command.run(tmp_path, "twolayouts", *narrow, "--junitxml=junit.xml")

    assert f"test_finding[{name}]" in listing.output
    assert not listing.report_path.exists() or listing.report.findings
    assert [finding.id for finding in result.report.findings] == [name]
    assert result.report.selection == Selection(
        selected=1, deselected=cases_on("dp1-cp1-mb1-bshd", "dp2-cp1-mb1-bshd") * len(Mode) - 1
    )
    [case] = ET.parse(tmp_path / "junit.xml").iter("testcase")
    assert case.attrib["name"] == f"test_finding[{name}]"


def test_quick_run_looks_elsewhere_for_what_was_to_be_seen_in_a_declined_step(
    tmp_path: Path,
) -> None:
    chosen = ("--checks=weights", "--plan=quick", "--proof-time=0")
    result = command.run(tmp_path, "wrongunlessitdeclines", *chosen)

    verdicts = result.report.summary.verdicts
    assert verdicts[Verdict.REFUSED], result.output
    assert verdicts[Verdict.MISMATCH], result.output
    assert " failed" not in result.output, "no test of the plan sees it"
    assert result.status == 1
    assert "nine_samples/dp2-cp1-mb1-bshd" in result.output
    assert "look at " in result.output, "it is traced as other causes are"


def test_mismatch_fails_names_the_denominator_and_stops_at_x(tmp_path: Path) -> None:
    result = command.run(tmp_path, "onetokenshort", "--modes=token_mean", "-x", *ONE_CASE)

    assert result.status == 1
    output = " ".join(result.output.split())
    assert "one token less is counted than there is: 34: a token is divided by 34" in output
    [finding] = result.report.findings
    assert finding.verdict == "mismatch"
    assert finding.error == pytest.approx(1 / 34, rel=1e-5)
    assert finding.diagnosis.name == "count_off_by_one"
    assert not result.report.complete
    assert "MISMATCH 1 × a count of tokens, samples or prompts is off by one" in result.output
    assert "for example weights/token_mean/uneven_lengths/dp1-cp1-mb1-bshd" in result.output


def test_a_failed_run_names_each_cause_once_and_each_finding_where_tb_asks_for_it(
    tmp_path: Path,
) -> None:
    cases = "one_token or two_steps or two_prompts or uneven_lengths or unequal_groups or nine"
    chosen = ("--modes=token_mean", "--checks=weights,metric", "--no-trace", "-k", cases)
    short = command.run(tmp_path, "onetokenshort", *chosen)
    long = command.run(tmp_path, "onetokenshort", *chosen, "--tb=short")

    wrong = [finding for finding in short.report.findings if finding.verdict == "mismatch"]
    assert len(wrong) > 20
    names = [cause.name for cause in short.report.causes]
    assert names == ["count_off_by_one", "not_finite"]
    assert short.output.count(" × ") == 2
    assert sum(f"example {finding.id}:" in short.output for finding in wrong) == 2
    assert all(finding.id in long.output for finding in wrong)
    assert f"{len(wrong)} failed" in short.output


NO_TOKEN = "ValueError: no active token in the batch"
SPLIT = "ValueError: 3 prompt groups on 2 ranks"
SCATTERED = "AssertionError: uid 0 appears in non-contiguous positions"


@pytest.mark.parametrize(
    ("adapter", "chosen", "status", "expected"),
    [
        (
            "withoutpromptmean",
            "weights and no_active_token",
            pytest.ExitCode.OK,
            {
                "sample_mean": ("refused", NO_TOKEN),
                "prompt_mean": ("unsupported", "no mode prompt_mean"),
                "token_mean": ("refused", NO_TOKEN),
                "constant": ("refused", NO_TOKEN),
            },
        ),
        (
            "declining",
            "weights and uneven_lengths",
            pytest.ExitCode.TESTS_FAILED,
            {
                "sample_mean": ("conforms", None),
                "prompt_mean": ("unsupported", "no prompt_mean"),
                "token_mean": ("conforms", None),
                "constant": ("declined", "ValueError: constant is out of fashion"),
            },
        ),
        (
            "wholegroupsonly",
            "weights and split_groups",
            pytest.ExitCode.TESTS_FAILED,
            dict.fromkeys(Mode, ("declined", SPLIT)) | {"prompt_mean": ("refused", SPLIT)},
        ),
        (
            "adjacentgroupsonly",
            "weights and interleaved_groups",
            pytest.ExitCode.OK,
            dict.fromkeys(Mode, ("refused", SCATTERED)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_promised_may_not_be_declined_and_the_rest_may(
    tmp_path: Path,
    adapter: str,
    chosen: str,
    status: int,
    expected: dict[str, tuple[str, str | None]],
) -> None:
    """Findings show refusals in the framework's own words; missing features are skipped tests."""
    result = command.run(tmp_path, adapter, "--layout=dp2-cp1-mb1-bshd", "-k", chosen)

    assert result.status == status, result.output
    assert {f.mode: (f.verdict, f.message) for f in result.report.findings} == expected
    skipped = [words for verdict, words in expected.values() if verdict == "unsupported"]
    assert all(f"unsupported: {words} (1)" in result.output for words in skipped)
    assert ("1 skipped" in result.output) == bool(skipped)


def test_crash_is_a_finding_and_the_run_goes_on(tmp_path: Path) -> None:
    result = command.run(
        tmp_path, "raising", "--modes=token_mean", "-k", "fully_masked_group or one_token"
    )

    verdicts = {f.id.split("/", 2)[2]: f.verdict for f in result.report.findings}
    assert verdicts == {
        "fully_masked_group/dp1-cp1-mb1-bshd": "conforms",
        "fully_masked_group/dp2-cp1-mb1-bshd": "conforms",
        "one_token/dp1-cp1-mb1-bshd": "conforms",
        "one_token/dp2-cp1-mb1-bshd": "crashed",
    }
    assert "RuntimeError: no kernel image" in result.output
    assert result.report.complete


def test_report_of_a_crash_names_no_machine_user_folder_or_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "not-for-anyone")
    chosen = ("--layout=dp2-cp1-mb1-bshd", "--checks=weights", "-k", "one_token")
    result = command.run(tmp_path, "vanishing", *chosen)
    text = result.report_path.read_text()

    assert "last words of" in text
    private = (socket.gethostname(), f"/{getpass.getuser()}", str(tmp_path), str(command.ROOT))
    assert [word for word in (*private, "not-for-anyone", "API_TOKEN") if word in text] == []


def test_framework_that_cannot_be_imported_ends_the_run(tmp_path: Path) -> None:
    result = command.run(tmp_path, "unloadable")

    assert result.status == NOT_DRIVEN
    assert "not driven: native cannot be loaded: ImportError: No module named 'flash_attn', at" in (
        result.output
    )
    assert "Traceback" not in result.output


MINE = """
from tests.broken_rarely import GroupsOfThree
from tests.waiting import wait_for, processes_of_session

class MyAdapter(GroupsOfThree):
    name = "mine"
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "some",
    [
        "weights and two_steps or arguments and divisor",
        pytest.param("logging or generated", marks=pytest.mark.thorough),
    ],
)
def test_workers_find_the_same_byte_for_byte(tmp_path: Path, some: str) -> None:
    """The adapter is a class in the current folder, without an entry point."""
    (tmp_path / "my_adapter.py").write_text(MINE)
    report = tmp_path / "reports" / "latest" / "mine.json"

    def findings(*workers: str) -> bytes:
        chosen = (
            "--examples=10",
            "--layout=dp2-cp1-mb2-bshd",
            "-k",
            f"token_mean and ({some})",
            *workers,
        )
        result = command.run(tmp_path, "my_adapter:MyAdapter", *chosen)
        assert f"report: {report}" in result.output
        assert load(report).complete
        return report.read_bytes().partition(b'"findings":')[2]

    assert findings() == findings("-n", "2")


@pytest.mark.processes
@pytest.mark.parametrize(
    "sign",
    [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM, signal.SIGKILL],
    ids=lambda sign: sign.name,
)
def test_stopped_run_keeps_its_findings_and_leaves_no_process(
    tmp_path: Path, sign: signal.Signals
) -> None:
    process = command.start(tmp_path, "--adapter=slow", "--modes=token_mean")
    journal = tmp_path / "reports" / "latest" / "slow.json.journal"
    wait_for(lambda: command.findings_in(journal) >= 2)
    ranks = processes_of_session(process.pid)
    if sign is signal.SIGINT:
        command.interrupt(process, sign)
    else:
        process.send_signal(sign)
    result = command.finish(process, tmp_path, "slow")
    kept = result.report_path
    if sign is signal.SIGKILL:
        assert not result.report_path.exists()
        again = command.run(tmp_path, "slow", "--collect-only", "-q")
        kept = journal.with_name("slow.json.killed-1.journal")
        assert f"an earlier run was killed; what it had found is kept: {kept}" in again.output
    elif sign is signal.SIGTERM:
        assert result.status == 128 + signal.SIGTERM
        assert "stopped by SIGTERM" in result.output
    report = load(kept)

    assert len(ranks) >= 4, "the run, its fork server and two ranks"
    assert not report.complete
    assert 2 <= len(report.findings) < 20
    assert not journal.exists()
    wait_for(lambda: not processes_of_session(process.pid))


@pytest.mark.parametrize(("given", "message"), table("conformance/refusals.toml")["run"].items())
def test_bad_input_is_refused_before_any_rank_starts(
    pytester: pytest.Pytester, given: str, message: str
) -> None:
    result = pytester.runpytest_inprocess(*given.replace("ROOT", str(command.ROOT)).split())

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.re_match_lines([f"ERROR: .*{message}"])
    assert not list(pytester.path.glob("reports/**/*.json"))


def test_folder_for_temporary_files_that_no_socket_fits_into_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    result = command.run(tmp_path, "native", "-k", "one_token")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "one of at most 75; set TMPDIR to a shorter one, such as /tmp" in result.output
    assert not result.report_path.exists()


def test_plugin_is_silent_where_nobody_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    process = command.start(tmp_path, "test_one.py")
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "conformance" not in output.replace("rl-loss-conformance", "")
    assert not (tmp_path / "reports").exists()
