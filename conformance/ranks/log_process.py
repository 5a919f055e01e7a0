"""Has a framework make logs in a process of its own, with asserts and without."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from conformance.ranks.processes import last_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.contract import Adapter, LogEntry

CHILD = "conformance.ranks.log_child"

WHO = "the process that makes logs"

LIMIT = 300.0
"""Seconds for a framework to be imported and to make a few logs."""


@dataclass(frozen=True, kw_only=True)
class LogOutcome:
    """Metrics or an error of one case; the error of all of them if the process died."""

    kind: Literal["logged", "raised", "unsupported", "crashed"]
    log: Mapping[str, float]
    message: str = ""


def outcomes(
    adapter: Adapter,
    source: Path | None,
    cases: Mapping[str, Sequence[LogEntry]],
    *,
    optimized: bool,
) -> Mapping[str, LogOutcome]:
    """What a framework makes of the entries of every case, by name, in a process of its own.

    ``optimized`` runs it under ``python -O``.
    """
    return _outcomes(pickle.dumps((adapter, source, dict(cases))), source, tuple(cases), optimized)


@cache
def _outcomes(
    request: bytes, source: Path | None, names: tuple[str, ...], optimized: bool
) -> Mapping[str, LogOutcome]:
    flags = ["-O"] if optimized else []
    command = [sys.executable, *flags, "-m", CHILD]
    try:
        child = subprocess.run(command, input=request, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return _crash_of_all(names, f"{WHO} gave no answer in {LIMIT:g} s")
    if child.returncode or not child.stdout:
        words = last_words(WHO, child.returncode, child.stderr, source)
        return _crash_of_all(names, words)
    answer: Mapping[str, LogOutcome] = pickle.loads(child.stdout)
    return answer


def _crash_of_all(names: Sequence[str], message: str) -> Mapping[str, LogOutcome]:
    """A crash of every case, as a process that died on one leaves no outcome of the others."""
    return dict.fromkeys(names, LogOutcome(kind="crashed", log={}, message=message))
