"""A review that is ended at any moment says what it knows, and leaves valid reports alone."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import psutil
import pytest

from conformance import cli
from conformance.comparing import journal, report_file
from conformance.comparing.reviewed import Reviewed
from conformance.plugin.controller import Controller
from conformance.plugin.reviewing import Side
from conformance.ranks.pool import RankPool
from conformance.runs.versions import history, kept
from conformance.runs.versions import review as reviews
from tests import command
from tests.toys import branched
from tests.waiting import processes_of_session, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

SECONDS_TO_END = 5.0
"""Seconds in which all processes of an interrupted review must end, on a machine that is idle."""

OF_BOTH = re.compile(r"s: worse: |[1-9]\d* findings? of both")
"""The words of a review once both versions have a finding."""

LAYOUT = "--layout=dp1-cp2-mb1-thd"


class Phase(NamedTuple):
    """A moment of a review: the function that runs, and whether both versions have findings."""

    home: object
    name: str
    has_findings: bool
    seconds: float = 60.0
    calls: int = 0
    """The number of calls of the function before the call in which to wait."""


PHASES = {
    "plan": Phase(reviews, "changed_lines", has_findings=False),
    "start": Phase(RankPool, "_start", has_findings=False),
    "run": Phase(Side, "_is_time_to_trace", has_findings=True, calls=4),
    "traces": Phase(Controller, "_trace", has_findings=True),
    "report of a version": Phase(journal.Journal, "finish", has_findings=True, seconds=1.0),
    "sentence": Phase(Reviewed, "of", has_findings=True, seconds=1.0),
}

TO_ONE, TO_ALL = os.kill, os.killpg

MOMENTS = [
    pytest.param("plan", signal.SIGINT, TO_ALL, marks=pytest.mark.thorough),
    pytest.param("start", signal.SIGTERM, TO_ALL, marks=pytest.mark.thorough),
    ("run", signal.SIGHUP, TO_ONE),
    ("traces", signal.SIGTERM, TO_ALL),
    ("report of a version", signal.SIGINT, TO_ALL),
    ("sentence", signal.SIGTERM, TO_ONE),
]
"""Moments that cover each phase and each signal, sent to the command alone or to its group."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return branched(tmp_path_factory.mktemp("r") / "slime")


@pytest.mark.parametrize(
    ("phase", "sign", "send"),
    MOMENTS,
    ids=lambda part: getattr(part, "name", getattr(part, "__name__", part)),
)
def test_a_review_is_ended(
    repository: Path,
    tmp_path: Path,
    phase: str,
    sign: signal.Signals,
    send: Callable[[int, int], None],
) -> None:
    server = psutil.Process(_server())
    ranks = {*server.children(recursive=True)}
    process = command.warm_context().Process(
        target=command._with_shared_ranks,
        args=(forkserver._forkserver._forkserver_address, _review, repository, tmp_path, phase),
    )
    process.start()
    assert process.pid is not None
    wait_for((tmp_path / "here").exists, seconds=120)
    if PHASES[phase].has_findings:
        wait_for(lambda: OF_BOTH.search((tmp_path / "output").read_text()), seconds=60)
    start = time.monotonic()
    send(process.pid, sign)
    process.join(60)
    took = time.monotonic() - start
    output = (tmp_path / "output").read_text()
    wait_for(lambda: not processes_of_session(process.pid or 0), seconds=SECONDS_TO_END)
    wait_for(lambda: {*server.children(recursive=True)} <= {*ranks, process}, seconds=3)

    assert process.exitcode in (cli.INTERRUPTED, cli.USAGE_ERROR), output
    assert "Traceback" not in output
    assert took < SECONDS_TO_END * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), output
    reports = [*(tmp_path / "reports").glob("*")]
    assert all(report_file.load(one).findings for one in reports)
    if PHASES[phase].has_findings:
        assert {one.name for one in reports} == {"base.json", "head.json"}
        assert "got worse" in output.splitlines()[-1]


def _server() -> int:
    """The id of the process from which the ranks of tests are forked."""
    command.warm_context()
    pid = forkserver._forkserver._forkserver_pid
    assert pid is not None
    return int(pid)


def _review(repository: Path, folder: Path, phase: str) -> None:
    """Run a review in a session of its own, which waits in a phase."""
    os.setsid()
    with (folder / "output").open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # A shell starts background jobs, such as these tests, with these signals ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _dwell(PHASES[phase], folder / "here")
    history.start = _forked
    kept.BASES = str(folder / "cache")
    reviews.OF_FINDINGS = 0.0
    options = (LAYOUT, "--checks=weights", "--modes=token_mean", f"--source={repository}@change")
    (folder / "reports").mkdir()
    given = f"--reports={folder / 'reports'}"
    sys.exit(cli.main(["review", "--adapter=slime", *options, given]))


def _dwell(phase: Phase, note: Path) -> None:
    """Make a phase's function wait in one call, and touch the file ``note`` before that."""
    before, calls = getattr(phase.home, phase.name), itertools.count()

    def stay(*given: object, **named: object) -> object:
        if next(calls) >= phase.calls and not note.exists():
            note.touch()
            time.sleep(phase.seconds)
        return before(*given, **named)

    setattr(phase.home, phase.name, stay)


def _forked(folder: str, output: IO[str], *arguments: str) -> command.Forked:
    """Run pytest in a fork of this process, which stays in its process group."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_pytest, args=(folder, output.name, arguments))
    process.start()
    return command.Forked(process)


def _pytest(folder: str, output: str, arguments: tuple[str, ...]) -> None:
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid, setsid = lambda: None, os.setsid
    command._pytest(Path(folder), arguments, dict(os.environ), output)
    os.setsid = setsid
