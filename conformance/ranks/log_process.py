"""Has a framework make logs in separate processes, one with asserts and one without.

The folder of each process has the framework's output, the outcome of the request and, for the
process without asserts, the request itself.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from adapters.contract import Rank, Unsupported
from conformance.findings.sanitize import sanitize
from conformance.ranks import preload
from conformance.ranks.messages import WorkerSpec
from conformance.ranks.processes import last_words, start_server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adapters.contract import Adapter, LogEntry
    from conformance.ranks.hardware import Hardware

WHO = "the process that makes logs"

LIMIT = 300.0
"""Seconds for a framework to be imported and to make a few logs."""


@dataclass(frozen=True, kw_only=True)
class LogOutcome:
    """Metrics or an error of one case; if the process died, all cases have its error."""

    kind: Literal["logged", "raised", "unsupported", "crashed"]
    log: Mapping[str, float]
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The entries that a framework has to join to logs, by the name of their case."""

    adapter: Adapter
    source: Path | None
    hardware: Hardware
    cases: Mapping[str, Sequence[LogEntry]]


class Logs(ExitStack):
    """The logs that a framework makes of every case; a first process starts at once."""

    def __init__(self, request: LogRequest) -> None:
        super().__init__()
        self._request = request
        self._plain = self._started(answer)

    def of(self, case: str) -> tuple[LogOutcome, LogOutcome]:
        """The outcome of a case, and its outcome under ``python -O``, which removes asserts."""
        outcome = self._plain.outcomes[case]
        return outcome, self._optimized.outcomes[case] if outcome.kind == "raised" else outcome

    def begin(self) -> None:
        """Wait for the first process, and start the one without asserts if it is needed.

        It is needed only if a case raised an error, which may come from an assert.
        """
        if any(outcome.kind == "raised" for outcome in self._plain.outcomes.values()):
            self._optimized  # noqa: B018 - starts it

    @cached_property
    def _optimized(self) -> LogProcess:
        return self._started(_become_optimized)

    def _started(self, target: Callable[[LogRequest, Path], None]) -> LogProcess:
        process = LogProcess(self._request, target)
        self.callback(process.end)
        return process


class LogProcess:
    """A process that answers a request; it starts at once, and `outcomes` waits for it."""

    def __init__(self, request: LogRequest, target: Callable[[LogRequest, Path], None]) -> None:
        self._source, self._names = request.source, tuple(request.cases)
        self._folder = tempfile.TemporaryDirectory(prefix="rl-loss-conformance-")
        spec = WorkerSpec(
            index=0, adapter=request.adapter, source=request.source, hardware=request.hardware
        )
        arguments = (request, Path(self._folder.name))
        self._child = start_server(spec).Process(target=target, args=arguments, daemon=True)
        self._child.start()

    def end(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.join()
        self._folder.cleanup()

    @cached_property
    def outcomes(self) -> Mapping[str, LogOutcome]:
        """The logs of every case, by name."""
        self._child.join(LIMIT)
        code, answered = self._child.exitcode, self._said("answer")
        if code is None:
            return self._crash_of_all(f"hang: {WHO} did not end in {LIMIT:g} s")
        if code or not answered:
            return self._crash_of_all(last_words(WHO, code, self._said("errors"), self._source))
        outcomes: Mapping[str, LogOutcome] = pickle.loads(answered)
        return outcomes

    def _said(self, where: str) -> bytes:
        path = Path(self._folder.name) / where
        return path.read_bytes() if path.exists() else b""

    def _crash_of_all(self, message: str) -> Mapping[str, LogOutcome]:
        """A crash of every case, since a process that died on one case left no outcomes at all."""
        return dict.fromkeys(self._names, LogOutcome(kind="crashed", log={}, message=message))


def _become_optimized(request: LogRequest, folder: Path) -> None:
    """Replace this process by an interpreter that removes asserts, and answer there."""
    _print_to(folder)
    (folder / "request").write_bytes(pickle.dumps(request))
    command = f"from {__name__} import answer_pickled; answer_pickled({str(folder)!r})"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    os.execve(sys.executable, [sys.executable, "-O", "-c", command], environ)


def answer_pickled(folder: str) -> None:
    """Answer the request in a folder."""
    answer(pickle.loads((Path(folder) / "request").read_bytes()), Path(folder))


def answer(request: LogRequest, folder: Path) -> None:
    """Write the outcome of a request into its folder; only this process imports torch."""
    import torch.distributed as dist

    preload.die_with_parent(signal.SIGKILL)
    _print_to(folder)
    preload.hide_gpus()
    preload.load_once(request.adapter, request.source)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    outcomes = {name: _outcome(request, entries) for name, entries in request.cases.items()}
    (folder / "answer").write_bytes(pickle.dumps(outcomes))


def _print_to(folder: Path) -> None:
    with (folder / "errors").open("ab") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)


def _outcome(request: LogRequest, entries: Sequence[LogEntry]) -> LogOutcome:
    source = request.source
    try:
        log = request.adapter.aggregate(entries, Rank(index=0, world_size=1))
    except Unsupported as reason:
        return LogOutcome(kind="unsupported", log={}, message=sanitize(str(reason), source))
    except Exception as error:
        message = sanitize(f"{type(error).__name__}: {error}", source)
        return LogOutcome(kind="raised", log={}, message=message)
    named = {sanitize(key, source): float(value) for key, value in log.items()}
    return LogOutcome(kind="logged", log=named)
