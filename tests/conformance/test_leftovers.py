"""Runs leave nothing behind on the machine, however they end and however many there are."""

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests import command
from tests.leftovers import OF_OTHERS, content, forgotten_memory, names, processes_of
from tests.waiting import wait_for

pytestmark = pytest.mark.processes

SMALL = ("--checks=weights", "--modes=token_mean", "-k", "one_token", "--layout=dp2-cp1-mb1-bshd")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way in which a run ends; ``sign`` is sent to the run as soon as a rank is at work."""

    adapter: str
    status: int
    arguments: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ()
    sign: signal.Signals | None = None

    def run(self, folder: Path) -> int:
        """Run to its end in a folder; returns the exit status."""
        begun = folder / "here"
        begun.unlink(missing_ok=True)
        arguments = (f"--adapter={self.adapter}", *SMALL, *self.arguments)
        process = command.start(folder, *arguments, torchrun=self.torchrun)
        if self.sign is not None:
            wait_for(begun.exists, seconds=300)
            process.send_signal(self.sign)
        return command.finish(process, folder, self.adapter).status


KINDS = {
    "a rank killed": Kind(adapter="killed", status=pytest.ExitCode.TESTS_FAILED),
    "Ctrl-C": Kind(adapter="lingering", status=pytest.ExitCode.INTERRUPTED, sign=signal.SIGINT),
    "ordinary": Kind(adapter="native", status=0),
    "torchrun": Kind(adapter="native", status=0, torchrun=("--nproc-per-node=2",)),
    "a rank hung": Kind(
        adapter="hanging", status=pytest.ExitCode.TESTS_FAILED, arguments=("--time-limit=3",)
    ),
    "SIGTERM": Kind(adapter="lingering", status=128 + signal.SIGTERM, sign=signal.SIGTERM),
    "two workers": Kind(adapter="native", status=0, arguments=("-n", "2")),
}

WITHOUT_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the runs of a test."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize("runs", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_nothing_is_left(tmp_path: Path, temporary: Path, runs: int) -> None:
    leave_nothing(islice(cycle(KINDS.items()), runs), tmp_path, temporary)


@pytest.mark.trl
@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
@pytest.mark.parametrize(
    "engine", ["ddp", "fsdp2", pytest.param("deepspeed", marks=WITHOUT_DEEPSPEED)]
)
def test_accelerate_leaves_nothing_and_two_runs_have_the_same_report(
    tmp_path: Path, temporary: Path, engine: str
) -> None:
    arguments = (f"--engine={engine}", "--checks=weights,metric", "-k=one_token or two_steps")
    kind = Kind(adapter="trl", status=0, arguments=arguments)
    leave_nothing([(f"accelerate, {engine}", kind)], tmp_path, temporary)
    report = (tmp_path / "reports" / "latest" / "trl.json").read_bytes()
    again = command.run(tmp_path, "trl", *SMALL, *arguments)

    assert again.report_path.read_bytes() == report


def leave_nothing(kinds: Iterable[tuple[str, Kind]], tmp_path: Path, temporary: Path) -> None:
    """Run kinds one after another: each run must leave nothing except its report."""
    memory = forgotten_memory(temporary)
    reports = set()
    for name, kind in kinds:
        if kind.sign is None:  # a run that is stopped in its first finding leaves no report
            reports.add(f"{kind.adapter}.json")
        start = time.monotonic()
        status = kind.run(tmp_path)
        end = time.monotonic()
        wait_for(lambda: not processes_of(temporary))
        wait_for(lambda: not forgotten_memory(temporary) - memory)
        print(
            f"{name}: status {status}, {end - start:.1f} s; the last process left"
            f" {time.monotonic() - end:.1f} s later; {listening()} ports of the machine listen,"
            f" {len(forgotten_memory(temporary))} pieces of shared memory have no owner"
        )

        assert status == kind.status
        assert [name for name in names(temporary) if not name.startswith(OF_OTHERS)] == []
        assert names(tmp_path) <= {"site", "reports", "here"}
        assert names(tmp_path / "reports" / "latest") <= reports


def listening() -> int:
    """The number of TCP ports on which processes of the machine listen."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return sum(b" 0A " in line for table in tables for line in content(table).splitlines())
