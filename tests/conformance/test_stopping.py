"""A run that is stopped at any moment leaves a valid report and nothing else."""

from __future__ import annotations

import getpass
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.comparing.report_file import load
from tests import command
from tests.waiting import processes_of_session, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Stop = Callable[[subprocess.Popen[str]], None]

pytestmark = pytest.mark.soak

STAY = """
import os, time
from pathlib import Path

def stay(*_):
    Path("here").touch()
    time.sleep(3)
"""
"""The beginning of a `conftest.py` whose function ``stay`` makes pytest wait; the file ``here``
says that it does."""

COLLECTING = STAY + "def pytest_collection_modifyitems(): stay()\n"
WRITING = STAY + "os.fsync = stay\n"

SIGNALLED_IN_A_CALLBACK = """
import os, signal, time, weakref

def stop(_):
    os.kill(os.getpid(), signal.{sign})
    time.sleep(1)

def pytest_collection_modifyitems():
    referent = set()
    reference = weakref.ref(referent, stop)
    del referent
"""
"""A `conftest.py` that sends a signal in a weakref callback, where Python drops exceptions."""

FEW = ("--checks=weights", "--modes=token_mean")


def ctrl_c(process: subprocess.Popen[str]) -> None:
    command.interrupt(process, signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


def terminate_all(process: subprocess.Popen[str]) -> None:
    command.interrupt(process, signal.SIGTERM)


STOPS = pytest.mark.parametrize(
    ("stop", "status"),
    [
        (ctrl_c, pytest.ExitCode.INTERRUPTED),
        (terminate, 128 + signal.SIGTERM),
        (terminate_all, 128 + signal.SIGTERM),
    ],
    ids=["SIGINT", "SIGTERM", "SIGTERM to all"],
)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of runs, with a name that is short enough for sockets."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@STOPS
@pytest.mark.parametrize(
    ("adapter", "conftest"),
    [("slow", COLLECTING), ("lingering", "")],
    ids=["collecting", "in the first finding"],
)
def test_before_anything_is_found_there_is_no_report(
    tmp_path: Path, adapter: str, conftest: str, stop: Stop, status: int
) -> None:
    (tmp_path / "conftest.py").write_text(conftest)
    process = command.start(tmp_path, f"--adapter={adapter}", *FEW)
    wait_for((tmp_path / "here").exists)
    result = stopped(stop, process, tmp_path, adapter)

    assert result.status == status, result.output
    assert not any(result.report_path.parent.iterdir())


@STOPS
def test_workers_stop_with_their_controller(tmp_path: Path, stop: Stop, status: int) -> None:
    process = command.start(tmp_path, "--adapter=slow", *FEW, "-n", "2")
    wait_for(lambda: found(tmp_path) >= 2, seconds=300)
    result = stopped(stop, process, tmp_path, "slow")

    assert result.status == status, result.output
    assert len(load(result.report_path).findings) >= 2
    assert not load(result.report_path).complete
    assert [*result.report_path.parent.iterdir()] == [result.report_path]


@pytest.mark.parametrize("stop", [ctrl_c, terminate], ids=["SIGINT", "SIGTERM"])
def test_while_the_report_is_written_it_is_too_late(tmp_path: Path, stop: Stop) -> None:
    (tmp_path / "conftest.py").write_text(WRITING)
    process = command.start(tmp_path, "--adapter=twolayouts", *FEW, "-k", "one_token")
    wait_for((tmp_path / "here").exists)
    result = stopped(stop, process, tmp_path, "twolayouts")

    assert result.status == 0, result.output
    assert load(result.report_path).complete
    assert [*result.report_path.parent.iterdir()] == [result.report_path]


@pytest.mark.parametrize("again", [ctrl_c, terminate], ids=["SIGINT", "SIGTERM"])
def test_while_a_run_stops_it_is_stopped_again(tmp_path: Path, again: Stop) -> None:
    (tmp_path / "conftest.py").write_text(WRITING)
    process = command.start(tmp_path, "--adapter=slow", *FEW)
    wait_for(lambda: found(tmp_path) >= 2, seconds=300)
    ctrl_c(process)
    wait_for((tmp_path / "here").exists)
    result = stopped(again, process, tmp_path, "slow")

    assert result.status == pytest.ExitCode.INTERRUPTED, result.output
    assert len(load(result.report_path).findings) >= 2
    assert not load(result.report_path).complete
    assert [*result.report_path.parent.iterdir()] == [result.report_path]


def test_an_impatient_user_loses_nothing(tmp_path: Path) -> None:
    process = command.start(tmp_path, "--adapter=slow", *FEW)
    wait_for(lambda: found(tmp_path) >= 2, seconds=300)
    for _ in range(20):
        if process.poll() is None:
            ctrl_c(process)
        time.sleep(0.05)
    result = stopped(lambda _: None, process, tmp_path, "slow")

    assert result.status != 0
    assert "Traceback" not in result.output
    assert "INTERNALERROR" not in result.output
    assert len(load(result.report_path).findings) >= 2
    assert [*result.report_path.parent.iterdir()] == [result.report_path]


def found(folder: Path) -> int:
    """The number of findings in the journal of the adapter `slow`."""
    journal = folder / "reports" / "latest" / "slow.json.journal"
    return command.findings_in(journal)


def stopped(
    stop: Stop, process: subprocess.Popen[str], folder: Path, adapter: str
) -> command.Result:
    """Stop a run, and assert that it leaves neither processes nor temporary files."""
    start = time.monotonic()
    stop(process)
    result = command.finish(process, folder, adapter)
    print(f"status {result.status}, {time.monotonic() - start:.1f} s to stop")
    wait_for(lambda: not processes_of_session(process.pid))
    left = {path.name for path in Path(os.environ["TMPDIR"]).iterdir()}
    assert left <= {f"pytest-of-{getpass.getuser()}"}, "pytest-xdist has pytest make that"
    return result


@pytest.mark.parametrize(
    ("sign", "status"), [("SIGINT", pytest.ExitCode.INTERRUPTED), ("SIGTERM", 128 + signal.SIGTERM)]
)
def test_a_signal_whose_exception_python_drops_still_ends_the_run(
    tmp_path: Path, sign: str, status: int
) -> None:
    (tmp_path / "conftest.py").write_text(SIGNALLED_IN_A_CALLBACK.format(sign=sign))
    process = command.start(tmp_path, "--adapter=twolayouts", *FEW)
    result = command.finish(process, tmp_path, "twolayouts")

    assert result.status == status, result.output
    assert not result.report_path.exists()
