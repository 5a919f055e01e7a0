"""Has a framework make logs in processes of their own, with asserts and without."""

from __future__ import annotations

import pickle
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from conformance.ranks.processes import WorkerSpec, last_words, start_server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from adapters.contract import Adapter, LogEntry
    from conformance.ranks.hardware import Hardware

WHO = "the process that makes logs"

LIMIT = 300.0
"""Seconds for a framework to be imported and to make a few logs."""


@dataclass(frozen=True, kw_only=True)
class LogOutcome:
    """Metrics or an error of one case; the error of all of them if the process died."""

    kind: Literal["logged", "raised", "unsupported", "crashed"]
    log: Mapping[str, float]
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The entries that a framework is to make logs of, by the name of their case."""

    adapter: Adapter
    source: Path | None
    hardware: Hardware
    cases: Mapping[str, Sequence[LogEntry]]


class Logs:
    """What a framework makes of the entries of every case; a first process starts at once."""

    def __init__(self, request: LogRequest) -> None:
        self._request = request
        self._processes = ExitStack()
        self._plain = self._processes.enter_context(LogProcess(request, _answer))

    def __enter__(self) -> Logs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._processes.close()

    def of(self, case: str) -> tuple[LogOutcome, LogOutcome]:
        """What came of a case, and what comes of it under ``python -O``, which removes asserts."""
        outcome = self._plain.outcomes[case]
        return outcome, self._optimized.outcomes[case] if outcome.kind == "raised" else outcome

    def begin(self) -> None:
        """Start what is still to come, which may be awaited later; the first process is soon done.

        Only where it raised an error, an assert may be why.
        """
        if any(outcome.kind == "raised" for outcome in self._plain.outcomes.values()):
            self._optimized  # noqa: B018 - starts it

    @cached_property
    def _optimized(self) -> LogProcess:
        process = LogProcess(self._request, _answer_without_asserts)
        return self._processes.enter_context(process)


class LogProcess:
    """A process that answers a request; it starts at once, and is waited for when asked."""

    def __init__(self, request: LogRequest, answer: Callable[[LogRequest, Path], None]) -> None:
        self._source, self._names = request.source, tuple(request.cases)
        self._folder = tempfile.TemporaryDirectory(prefix="rl-loss-conformance-")
        spec = WorkerSpec(
            index=0, adapter=request.adapter, source=request.source, hardware=request.hardware
        )
        arguments = (request, Path(self._folder.name))
        self._child = start_server(spec).Process(target=answer, args=arguments, daemon=True)
        self._child.start()

    def __enter__(self) -> LogProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.join()
        self._folder.cleanup()

    @cached_property
    def outcomes(self) -> Mapping[str, LogOutcome]:
        """Those of every case, by name."""
        self._child.join(LIMIT)
        code, answered = self._child.exitcode, self._said("answer")
        if code is None:
            return self._crash_of_all(f"{WHO} gave no answer in {LIMIT:g} s")
        if code or not answered:
            return self._crash_of_all(last_words(WHO, code, self._said("errors"), self._source))
        outcomes: Mapping[str, LogOutcome] = pickle.loads(answered)
        return outcomes

    def _said(self, where: str) -> bytes:
        path = Path(self._folder.name) / where
        return path.read_bytes() if path.exists() else b""

    def _crash_of_all(self, message: str) -> Mapping[str, LogOutcome]:
        """A crash of every case, as a process that died on one leaves no outcome of the others."""
        return dict.fromkeys(self._names, LogOutcome(kind="crashed", log={}, message=message))


def _answer(request: LogRequest, folder: Path) -> None:
    """Answer in this process; torch is imported in it alone."""
    from conformance.ranks.log_child import answer

    answer(request, folder)


def _answer_without_asserts(request: LogRequest, folder: Path) -> None:
    """Become a process that answers without asserts."""
    from conformance.ranks.log_child import become_optimized

    become_optimized(request, folder)
