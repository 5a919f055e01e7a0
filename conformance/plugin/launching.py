"""The processes of a pytest run: its ranks, which torchrun may start, and signals that end it."""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from conformance.findings.errors import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from conformance.ranks.hardware import RankBudget
    from conformance.ranks.processes import LocalLauncher
    from conformance.ranks.torchrun import Launch, RemoteWorkers


REMOTE_WORKERS: pytest.StashKey[RemoteWorkers] = pytest.StashKey()

SOUND = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
"""Exit statuses of complete runs, in which the other processes have done what they should."""


def serve_elsewhere(config: pytest.Config) -> int | None:
    """In a process that torchrun started for another rank than 0, serve; returns its exit status.

    Raises:
        pytest.UsageError: torchrun was told something that ranks cannot be run under.
    """
    launch = _launch(config)
    if launch is None or launch.rank == 0:
        return None
    from conformance.ranks.torchrun import serve

    return serve(launch)


def connect_workers(config: pytest.Config) -> None:
    """Wait for the other processes that torchrun started, if it did, and keep them until the end.

    Raises:
        pytest.UsageError: pytest-xdist is there as well.
    """
    launch = _launch(config)
    if launch is None:
        return
    from conformance.ranks.torchrun import RemoteWorkers

    config.stash[REMOTE_WORKERS] = RemoteWorkers(launch)
    if config.getoption("dist", default="no") != "no":
        raise pytest.UsageError(
            "pytest-xdist shares findings out among processes, and torchrun started one for each"
            " rank; leave out -n, or torchrun"
        )


def dismiss_workers(config: pytest.Config, session: pytest.Session | None) -> None:
    """Dismiss the other processes of torchrun; without a session the command line was at fault."""
    if REMOTE_WORKERS in config.stash:
        status = pytest.ExitCode.USAGE_ERROR if session is None else session.exitstatus
        config.stash[REMOTE_WORKERS].dismiss(0 if status in SOUND else status)


def launcher(config: pytest.Config) -> LocalLauncher:
    """The launcher, which starts the ranks."""
    launch = _launch(config)
    if launch is None:
        from conformance.ranks.processes import LocalLauncher

        return LocalLauncher()
    from conformance.ranks.torchrun import TorchrunLauncher

    return TorchrunLauncher(launch, config.stash[REMOTE_WORKERS])


def rank_budget(config: pytest.Config) -> RankBudget:
    """The largest number of ranks."""
    from conformance.ranks.hardware import MAX_RANKS, RankBudget

    launch, max_ranks = _launch(config), config.getoption("max_ranks")
    if launch is not None:
        return launch.rank_budget(max_ranks)
    return RankBudget.of(MAX_RANKS if max_ranks is None else max_ranks)


def _launch(config: pytest.Config) -> Launch | None:
    """The launch that torchrun describes, where it started this run of an adapter."""
    if config.getoption("adapter") is None:
        return None
    from conformance.ranks.torchrun import Launch

    try:
        return Launch.of(os.environ)
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from error


class EndingSignals:
    """Has SIGTERM and SIGHUP end a run as Ctrl-C does: ranks end and the report is written.

    Python drops what a handler raises during a weak reference's callback, as on an import. So it is
    raised again before the next test.
    """

    def __init__(self) -> None:
        import multiprocessing.util  # noqa: F401 - cleans up at exit, after what registers later

        self._ending: BaseException | None = None
        signal.signal(signal.SIGTERM, self._end)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # as it is not with nohup
            signal.signal(signal.SIGHUP, self._end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and is not ignored
            signal.signal(signal.SIGINT, self._end)
        # Stopping a process that is ending anyway would leave its temporary folders.
        atexit.register(_ignore)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._ending is not None:  # it ends already, and nothing of it is to be left behind
            return
        if number == signal.SIGINT:
            self._ending = KeyboardInterrupt()
        else:
            message = f"stopped by {signal.Signals(number).name}"
            self._ending = pytest.exit.Exception(message, returncode=128 + number)
        raise self._ending

    def pytest_runtest_logstart(self) -> None:
        """Raise what was dropped."""
        if self._ending is not None:
            raise self._ending


@contextmanager
def too_late() -> Iterator[None]:
    """A run that writes its report has come to its end: to stop it would lose what it found."""
    former = _ignore()
    try:
        yield
    finally:
        for sign, handler in former.items():
            signal.signal(sign, handler)


def _ignore() -> dict[signal.Signals, Any]:
    """Ignore what ends a run; returns the handlers before."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return {sign: signal.signal(sign, signal.SIG_IGN) for sign in ending}
