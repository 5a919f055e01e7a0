"""Signals that end a run early, and the one moment in which they come too late."""

from __future__ import annotations

import atexit
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class EndingSignals:
    """Has SIGTERM end a run as Ctrl-C does: the ranks end and the report is written.

    Python drops what a handler raises during a weak reference's callback, as on an import. So it is
    raised again before the next test.
    """

    def __init__(self) -> None:
        import multiprocessing.util  # noqa: F401 - cleans up at exit, after what registers later

        self._ending: BaseException | None = None
        signal.signal(signal.SIGTERM, self._end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and is not ignored
            signal.signal(signal.SIGINT, self._end)
        # Stopping a process that is ending anyway would leave its temporary folders.
        atexit.register(_ignore)

    def _end(self, number: int, frame: FrameType | None) -> None:
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
    return {sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGINT, signal.SIGTERM)}
