"""A fault of the machine costs the finding in flight and nothing else."""

import signal
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from adapters.contract import Adapter, Layout
from conformance.comparing.report_file import load
from conformance.findings.report import Selection
from conformance.findings.verdict import Verdict
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from conformance.ranks.processes import LocalLauncher
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from tests import command, faulty
from tests.conformance.cells import cell
from tests.conformance.ranks import ACTIVE, LIMIT, MASKED, assert_matches, is_alive, job
from tests.findings import begun
from tests.waiting import processes_of_session, wait_for

JUNIT = "--junitxml=junit.xml"


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (faulty.KilledInCollective(), "rank 1 was killed by SIGKILL"),
        (faulty.KilledAfterwards(), "rank 1 was killed by SIGKILL"),
        (faulty.HangingInNativeCode(), r"hang: .*rank 1 is at tests/faulty.py:\d+ \(\w+\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rank_that_is_lost_costs_one_finding(adapter: Adapter, message: str) -> None:
    with RankPool(adapter, None, size=2, time_limit=LIMIT) as pool:
        pids = pool.pids()
        start = time.monotonic()
        outcome = pool.run(job(MASKED))
        print(f"{type(adapter).__name__}: {time.monotonic() - start:.1f} s")

        assert isinstance(outcome, Crashed)
        assert_matches(message, outcome.message)
        assert time.monotonic() - start < 2 * LIMIT + 10, "the others' wait was not cut short"
        assert isinstance(pool.run(job(ACTIVE)), Ran)
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.processes
def test_a_fork_server_that_is_killed_is_not_the_framework_s_failure(tmp_path: Path) -> None:
    chosen = ("--checks=weights", "--modes=token_mean", "-k", "one_token or uneven_lengths")
    run = command.start(tmp_path, "--adapter=killedwithitsserver", *chosen)
    report = command.finish(run, tmp_path, "killedwithitsserver").report

    by_case = {
        finding.id.split("/")[2]: finding for finding in report.findings if "dp2" in finding.id
    }
    lost = by_case["one_token"]
    assert lost.verdict is Verdict.NOT_DRIVEN
    assert_matches("^rank [01] was lost: the fork server was killed$", lost.message)
    assert by_case["uneven_lengths"].verdict is Verdict.CONFORMS


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (faulty.Garbled(), r"RuntimeError: no kernel image \udcff\x00"),
        (faulty.GarbledLastWords(), r"no kernel image \xff\x00"),
        (faulty.GarbledRefusal(), r"no kernel image \udcff\x00"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_words_that_no_file_can_hold_are_made_readable(adapter: Adapter, message: str) -> None:
    with RankPool(adapter, None, size=2, time_limit=LIMIT) as pool:
        outcome = pool.run(job(MASKED))

    assert isinstance(outcome, Crashed | Declined)
    assert outcome.message.splitlines()[-1] == message


@pytest.mark.thorough
def test_a_garbled_framework_makes_no_garbled_report(tmp_path: Path) -> None:
    cases = ("-k", "weights and one_token or different_keys or key_order")
    start = time.monotonic()
    result = command.run(tmp_path, "garbled", *cases, "--modes=sample_mean,token_mean", JUNIT)
    print(f"Garbled: status {result.status}, {time.monotonic() - start:.1f} s")

    report = load(result.report_path)
    texts = [f"{f.message} {f.diagnosis and f.diagnosis.explanation}" for f in report.findings]
    junit = (tmp_path / "junit.xml").read_text()
    assert result.status == pytest.ExitCode.TESTS_FAILED
    assert report.complete
    assert {f.verdict for f in report.findings} == {*Verdict} - {
        Verdict.UNSUPPORTED,
        Verdict.DECLINED,
        Verdict.ADVICE,
        Verdict.NOT_DRIVEN,
    }
    for text in (result.output, junit, "\n".join(texts)):
        assert r"RuntimeError: no kernel image \udcff\x00" in text
        assert r"loss \udcff\x00 = 1.5" in text
        assert not set(text) & set(faulty.GARBAGE.removesuffix("[2J"))
    assert r"ValueError: keys \udcff\x00" in "\n".join(texts)
    ET.fromstring(junit)


def test_a_rank_that_fails_in_one_micro_batch_is_named() -> None:
    adapter = faulty.RaisingInOneMicroBatch()
    with RankPool(adapter, None, size=2, time_limit=LIMIT) as pool:
        split = make(
            cell("uneven_lengths", Layout(dp=2, micro_batches=2, format="thd")), SharedJobs(pool)
        )
        whole = make(cell("uneven_lengths", Layout(dp=2)), SharedJobs(pool))

    assert split.verdict is Verdict.CRASHED
    assert split.message.startswith("FloatingPointError: loss is not finite\nrank 1 raised")
    assert whole.verdict is Verdict.CONFORMS


def test_weights_that_are_not_finite_are_a_mismatch_and_shown_as_such() -> None:
    adapter = faulty.NotFinite()
    with RankPool(adapter, None, size=1) as pool:
        found = make(cell("uneven_lengths", Layout()), SharedJobs(pool))

    assert found.verdict is Verdict.MISMATCH
    assert found.error is None
    assert found.diagnosis is not None
    observed = {run.observed for sample in found.picture.samples for run in sample.runs}
    assert None in observed
    assert len(observed) > 1


@pytest.mark.parametrize(
    "adapter",
    [faulty.Wandering(), faulty.Shouting(), faulty.Silent()],
    ids=lambda a: type(a).__name__,
)
def test_bad_manners_change_nothing_and_end_with_the_run(adapter: Adapter) -> None:
    launcher = LocalLauncher()
    with RankPool(adapter, None, size=2, time_limit=20, launcher=launcher) as pool:
        pids = pool.pids()
        for _ in range(3):
            assert isinstance(pool.run(job()), Ran)
        assert sum(file.stat().st_size for file in launcher.folder.iterdir()) < 50 << 20

    assert not any(is_alive(pid) for pid in pids)
    assert not launcher.folder.exists()


def test_what_a_framework_starts_ends_with_its_rank(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with RankPool(faulty.Spawning(pids), None, size=2, time_limit=20) as pool:
        assert isinstance(pool.run(job(ACTIVE)), Ran)
        assert isinstance(pool.run(job(MASKED)), Crashed)
        assert isinstance(pool.run(job(ACTIVE)), Ran)

    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 6
    wait_for(lambda: not any(is_alive(pid) for pid in started))


@pytest.mark.processes
def test_a_run_that_is_stopped_before_its_first_finding_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM stops this run; `test_leftovers` tests Ctrl-C."""
    process = command.start(tmp_path, "--adapter=slow")
    journal = tmp_path / "reports" / "latest" / "slow.json.journal"
    wait_for(lambda: len(processes_of_session(process.pid)) > 2)  # ranks are being started
    command.interrupt(process, signal.SIGTERM)
    result = command.finish(process, tmp_path, "slow")

    assert result.status != 0
    assert not result.report_path.exists()
    assert not journal.exists()
    wait_for(lambda: not processes_of_session(process.pid))


def test_a_second_run_on_the_same_report_is_refused_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "latest" / "slow.json"
    path.parent.mkdir(parents=True)
    first = begun(path, "a")
    second = command.run(tmp_path, "slow", "--modes=token_mean", "--checks=weights")
    first.finish(Selection(selected=1, deselected=0))

    assert second.status == pytest.ExitCode.USAGE_ERROR
    assert "another run is about to write" in second.output
    assert len(load(path).findings) == 1
