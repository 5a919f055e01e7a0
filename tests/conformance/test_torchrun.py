"""Runs under torchrun, as a user starts them, on one machine and as if on two."""

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from conformance.findings.errors import LaunchError
from conformance.ranks import torchrun
from conformance.ranks.torchrun import Launch
from tests import command
from tests.leftovers import OF_OTHERS, names
from tests.waiting import wait_for

pytestmark = pytest.mark.processes

TWO = ("--nproc-per-node=2",)
FEW = ("--checks=weights", "--modes=token_mean,prompt_mean", "-k", "uneven_lengths or one_token")
LAYOUTS = ("--layout=dp1-cp1-mb1-bshd", "--layout=dp2-cp1-mb2-thd")

CASES = ("two_prompts", "fibonacci_lengths", "odd_groups", "ten_samples", "padded_widths")
IN_TURN = (
    "--layout=dp2-cp1-mb1-bshd",
    "--checks=weights",
    "--modes=token_mean",
    "--time-limit=15",
    "-k",
    " or ".join(CASES),
)
"""Options with which `FailingInTurn` fails in a different way in each case except the last."""

ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
}


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    """The results of two runs under torchrun and one without, which ran at the same time."""

    failing: command.Result
    native: command.Result
    pool: command.Result
    left: list[str]
    """Names of temporary files that the two runs under torchrun left."""


@pytest.fixture
def at_once(tmp_path_factory: pytest.TempPathFactory) -> AtOnce:
    folder, temporary = (tmp_path_factory.mktemp(name) for name in ("r", "t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        failing = command.start(folder / "a", "--adapter=failinginturn", *IN_TURN, torchrun=TWO)
        native = command.start(folder / "b", "--adapter=native", *FEW, *LAYOUTS, torchrun=TWO)
    pool = command.run(folder / "c", "native", *FEW, *LAYOUTS)
    failed = command.finish(failing, folder / "a", "failinginturn")
    found = command.finish(native, folder / "b", "native")
    wait_for(lambda: not any(processes_in(folder / name) for name in "ab"), seconds=120)
    left = [name for name in names(temporary) if not name.startswith(OF_OTHERS)]
    return AtOnce(failing=failed, native=found, pool=pool, left=left)


def test_runs_find_what_the_pool_finds_go_on_after_failures_and_leave_nothing(
    at_once: AtOnce,
) -> None:
    """All is asserted in one test, as each worker of pytest-xdist would repeat the runs."""
    found, failing = at_once.native, at_once.failing
    findings = {finding.id.split("/")[2]: finding for finding in failing.report.findings}
    crashed = {case: one.message for case, one in findings.items() if one.verdict == "crashed"}

    assert found.status == 0, found.output
    assert found.findings == at_once.pool.findings
    assert found.output.count("test session starts") == 1
    assert found.report.complete

    assert failing.status == 1
    assert "exitcode  : 1 " in failing.output
    assert findings.keys() == set(CASES)
    assert findings.keys() - crashed.keys() == {"padded_widths"}
    assert crashed["two_prompts"].startswith("rank 1 was killed by SIGKILL")
    assert crashed["fibonacci_lengths"].startswith("rank 1 exited with status 7\n")
    assert crashed["odd_groups"].startswith("RuntimeError: no kernel image\nrank 1 raised\n")
    assert crashed["ten_samples"].startswith("hang: rank 0 waits in all_reduce at ")
    assert failing.report.complete

    assert at_once.left == []


@pytest.mark.thorough
def test_two_groups_of_processes_find_the_same_as_one(tmp_path: Path) -> None:
    """The first group reports the mismatch; the exit status of the second is 0."""
    pool = command.run(tmp_path, "onetokenshort", *FEW, *LAYOUTS)
    first, second = run_in_two_groups(tmp_path, "onetokenshort", *FEW, *LAYOUTS)

    assert (pool.status, first.status, second.status) == (1, 1, 0), first.output + second.output
    assert first.findings == pool.findings
    assert first.report.complete
    assert "test session starts" not in second.output
    wait_for(lambda: not processes_in(tmp_path), seconds=120)


@pytest.mark.thorough
def test_bad_input_ends_all_processes(tmp_path: Path) -> None:
    result = command.torchrun(tmp_path, "native", "--layout=dp4-cp1-mb1-thd", options=TWO)

    assert result.status == 1, "torchrun has no other for failures"
    assert "exitcode  : 4 " in result.output
    assert (
        "layout dp4-cp1-mb1-thd takes 4 ranks and torchrun started 2 processes, one for each;"
        " start 4 with --nproc-per-node and --nnodes or choose a smaller layout"
    ) in result.output
    assert not result.report_path.exists()
    wait_for(lambda: not processes_in(tmp_path), seconds=120)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-n", "2"), "*leave out -n, or torchrun"),
        (
            ("--layout=dp16-cp1-mb1-thd",),
            "*layout dp16-cp1-mb1-thd takes 16 ranks and torchrun started 8 processes, one for"
            " each; start 16 with --nproc-per-node and --nnodes or choose a smaller layout",
        ),
    ],
)
def test_bad_input_is_refused_and_the_other_processes_are_dismissed(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    words: str,
) -> None:
    workers = MagicMock()
    monkeypatch.setattr(torchrun, "RemoteWorkers", workers)
    for name, value in (ENVIRONMENT | {"RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    result = pytester.runpytest_inprocess("--adapter=native", *arguments)

    result.stderr.fnmatch_lines([words])
    workers().dismiss.assert_called_once_with(pytest.ExitCode.USAGE_ERROR)


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
        signal.SIGTERM,
        pytest.param(signal.SIGKILL, marks=pytest.mark.thorough),
    ],
    ids=lambda sign: sign.name,
)
def test_stopped_run_keeps_its_findings_and_leaves_no_process(
    tmp_path: Path, sign: signal.Signals
) -> None:
    process = command.start(tmp_path, "--adapter=slow", "--modes=token_mean", torchrun=TWO)
    journal = tmp_path / "reports" / "latest" / "slow.json.journal"
    wait_for(lambda: command.findings_in(journal) >= 2, seconds=120)
    running = processes_in(tmp_path)
    if sign is signal.SIGINT:
        command.interrupt(process, sign)
    else:
        process.send_signal(sign)
    result = command.finish(process, tmp_path, "slow")

    assert len(running) >= 7, "torchrun, two runs, their fork servers and a rank each"
    assert len(result.report.findings) >= 2
    assert not result.report.complete
    wait_for(lambda: not processes_in(tmp_path), seconds=120)


def test_launch_is_read_off_the_environment() -> None:
    launch = Launch.of(ENVIRONMENT)

    assert launch == Launch(
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        machines=2,
        host="node-0",
        port=29500,
    )
    assert Launch.of({"RANK": "0", "WORLD_SIZE": "2"}) is None, "not torchrun's"


def test_launch_without_a_store_of_torchruns_own_is_refused() -> None:
    with pytest.raises(LaunchError, match="unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        Launch.of(ENVIRONMENT | {"TORCHELASTIC_USE_AGENT_STORE": "False"})


def test_only_ranks_of_one_machine_are_kept_off_the_network(tmp_path: Path) -> None:
    several = Launch.of(ENVIRONMENT)
    one = Launch.of(ENVIRONMENT | {"GROUP_WORLD_SIZE": "1"})

    assert several.slot(tmp_path).interface is None
    assert one.slot(tmp_path).interface == "lo"


def test_there_is_room_for_a_rank_in_each_process_unless_a_user_wants_fewer() -> None:
    launch = Launch.of(ENVIRONMENT)

    assert (launch.rank_budget(None).ranks, launch.rank_budget(None).here) == (8, 4)
    assert (
        launch.rank_budget(6).ranks,
        launch.rank_budget(6).here,
        launch.rank_budget(16).ranks,
    ) == (6, 4, 8)
    assert launch.rank_budget(6).rule == "--max-ranks is 6"


def run_in_two_groups(folder: Path, adapter: str, *arguments: str) -> list[command.Result]:
    """Run under two torchruns, as on two machines with one process each."""
    port = free_port()
    shared = ("--nproc-per-node=1", "--nnodes=2", "--master-addr=127.0.0.1")
    runs = [
        command.start(
            folder,
            f"--adapter={adapter}",
            *arguments,
            torchrun=(*shared, f"--master-port={port}", f"--node-rank={group}"),
        )
        for group in (0, 1)
    ]
    return [command.finish(run, folder, adapter) for run in runs]


def processes_in(folder: Path) -> list[int]:
    """The processes in a folder; torchrun gives each process of a run a session of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                here = (entry / "cwd").readlink() == folder
            except OSError:
                continue
            if here:
                found.append(int(entry.name))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
