"""Signals that end a run early, and the one moment in which they come too late."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def end_on_sigterm() -> None:
    """As on Ctrl-C: the ranks end and the report is written."""
    signal.signal(signal.SIGTERM, _end)


@contextmanager
def too_late() -> Iterator[None]:
    """A run that writes its report has come to its end: to stop it would lose what it found."""
    former = {sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sign, handler in former.items():
            signal.signal(sign, handler)


def _end(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)
