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


def end_on_sigterm() -> None:
    """As on Ctrl-C: the ranks end and the report is written."""
    import multiprocessing.util  # noqa: F401 - it cleans up at exit, after what is registered later

    signal.signal(signal.SIGTERM, _end)
    # Stopping a process that is ending anyway would leave its temporary folders.
    atexit.register(_ignore)


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


def _end(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)
