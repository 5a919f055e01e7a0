"""Has a framework make logs in a process of its own, with asserts or without."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from conformance.ranks.processes import last_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

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


class LogProcess:
    """A process in which a framework makes a log of the entries of every case; it starts at once.

    ``optimized`` runs it under ``python -O``. Nobody waits for it until its outcomes are asked for.
    """

    def __init__(
        self,
        adapter: Adapter,
        source: Path | None,
        cases: Mapping[str, Sequence[LogEntry]],
        *,
        optimized: bool,
    ) -> None:
        self._source, self._names = source, tuple(cases)
        self._folder = tempfile.TemporaryDirectory(prefix="rl-loss-conformance-")
        request, self._answer, self._errors = (
            Path(self._folder.name) / name for name in ("request", "answer", "errors")
        )
        request.write_bytes(pickle.dumps((adapter, source, dict(cases))))
        command = [sys.executable, *(["-O"] if optimized else []), "-m", CHILD]
        with (
            request.open("rb") as stdin,
            self._answer.open("wb") as stdout,
            self._errors.open("wb") as stderr,
        ):
            self._child = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)

    def __enter__(self) -> LogProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.wait()
        self._folder.cleanup()

    @cached_property
    def outcomes(self) -> Mapping[str, LogOutcome]:
        """Those of every case, by name."""
        try:
            code = self._child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return self._crash_of_all(f"{WHO} gave no answer in {LIMIT:g} s")
        answered = self._answer.read_bytes()
        if code or not answered:
            errors = self._errors.read_bytes()
            return self._crash_of_all(last_words(WHO, code, errors, self._source))
        outcomes: Mapping[str, LogOutcome] = pickle.loads(answered)
        return outcomes

    def _crash_of_all(self, message: str) -> Mapping[str, LogOutcome]:
        """A crash of every case, as a process that died on one leaves no outcome of the others."""
        return dict.fromkeys(self._names, LogOutcome(kind="crashed", log={}, message=message))
