"""The processes of a pytest run: its ranks, perhaps started by torchrun, and ending signals."""

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
"""Exit statuses of complete runs, in which the other processes did their part."""


def serve_elsewhere(config: pytest.Config) -> int | None:
    """In torchrun's processes other than rank 0, serve rank 0; returns the exit status.

    Raises:
        pytest.UsageError: ranks cannot run with torchrun's options.
    """
    launch = _launch(config)
    if launch is None or launch.rank == 0:
        return None
    from conformance.ranks.torchrun import serve

    return serve(launch)


def connect_workers(config: pytest.Config) -> None:
    """Wait for torchrun's other processes, if torchrun started this run, and keep them to the end.

    Raises:
        pytest.UsageError: the run uses pytest-xdist as well.
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
    """Dismiss torchrun's other processes; without a session the command line was wrong."""
    if REMOTE_WORKERS in config.stash:
        status = pytest.ExitCode.USAGE_ERROR if session is None else session.exitstatus
        config.stash[REMOTE_WORKERS].dismiss(0 if status in SOUND else status)


def launcher(config: pytest.Config) -> LocalLauncher:
    """The launcher that starts the ranks."""
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
    """The launch by which torchrun started this run; None without torchrun or an adapter."""
    if config.getoption("adapter") is None:
        return None
    from conformance.ranks.torchrun import Launch

    try:
        return Launch.of(os.environ)
    except ConformanceError as error:
        raise pytest.UsageError(str(error)) from error


class EndingSignals:
    """Makes SIGTERM and SIGHUP end a run as Ctrl-C does: ranks end and the report is written.

    Python drops an exception that a handler raises during a weak reference's callback, and imports
    run such callbacks. So the exception is raised again before the next test.
    """

    def __init__(self) -> None:
        import multiprocessing.util  # noqa: F401 - cleans up at exit, after what registers later

        self._ending: BaseException | None = None
        signal.signal(signal.SIGTERM, self._end)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup sets SIG_IGN
            signal.signal(signal.SIGHUP, self._end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # SIGINT is not ignored
            signal.signal(signal.SIGINT, self._end)
        # Stopping a process that is ending anyway would leave its temporary folders.
        atexit.register(_ignore)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._ending is not None:  # the run is ending, and must clean up
            return
        if number == signal.SIGINT:
            self._ending = KeyboardInterrupt()
        else:
            message = f"stopped by {signal.Signals(number).name}"
            self._ending = pytest.exit.Exception(message, returncode=128 + number)
        raise self._ending

    def pytest_runtest_logstart(self) -> None:
        """Raise the exception that Python dropped."""
        if self._ending is not None:
            raise self._ending


@contextmanager
def too_late() -> Iterator[None]:
    """Ignore ending signals in the context: a run that writes its report must not lose it."""
    former = _ignore()
    try:
        yield
    finally:
        for sign, handler in former.items():
            signal.signal(sign, handler)


def _ignore() -> dict[signal.Signals, Any]:
    """Ignore the signals that end a run; returns the previous handlers."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return {sign: signal.signal(sign, signal.SIG_IGN) for sign in ending}
