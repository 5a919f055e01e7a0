"""The pool of ranks, as the controlling process sees it.

Processes are forked once per session from a server that has the framework in memory, and serve
worlds of every size up to the pool's by joining another `torch.distributed` world. After a failure
the pool is killed and forked anew.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from conformance import preload

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess
    from types import TracebackType

    from adapters.contract import Adapter, Description, Job, Observation
    from conformance.rank import Declined, Ready, Reply

START_LIMIT = 300.0
"""Seconds for importing a framework; on a cold disk SkyRL was seen to take 40."""

GRACE = 3.0
"""Seconds for the other ranks to answer once one failed: most wait in vain then."""

GRACE_TO_DECLINE = 10.0
"""Likewise once one declined: most decline too, as soon as they get a core to do it on."""

LOG_LINES = 5
"""Of a dead rank's output that a finding quotes."""

LOG_TAIL = 20_000
"""Bytes of it in which they are looked for."""


WORDS_OF_A_WAITING_RANK = ("Timed out waiting", "Connection closed by peer", "Connection reset")
"""What gloo says in a rank whose partner in a collective failed or never came."""


class StartError(RuntimeError):
    """The framework cannot be imported in a rank."""


@dataclass(frozen=True)
class Ran:
    """Every rank of the layout ran the job; ``framework_seconds`` is the slowest one's."""

    observations: tuple[Observation, ...]
    framework_seconds: float


@dataclass(frozen=True)
class Crashed:
    """A rank raised, died or hung; the message says which and how."""

    message: str


class _Blame(IntEnum):
    """How likely it is that a rank without a usable answer is why there is none from another."""

    WAITED = 1
    """It may only have waited for another."""

    SILENT = 2
    """It hangs, as one does that waits for others, and as one does that others wait for."""

    FAILED = 3


@dataclass(frozen=True)
class _Failure:
    """A rank without a usable answer."""

    message: str
    blame: _Blame


@dataclass(frozen=True)
class _Answer:
    """What came of one rank."""

    rank: int
    reply: Reply | Ready | _Failure


class RankPool:
    """Processes that run jobs through one adapter and source.

    ``size`` is the largest world served, ``time_limit`` the seconds a job may take.
    """

    def __init__(
        self, adapter: Adapter, source: Path | None, size: int, time_limit: float = 120.0
    ) -> None:
        self.adapter = adapter
        self.source = source
        self._size = size
        self._time_limit = time_limit
        self._folder = tempfile.TemporaryDirectory(prefix="rl-loss-conformance-")
        self._worlds = count()
        self._world: object = None
        self._processes: list[ForkServerProcess] = []
        self._connections: list[Connection] = []
        self._description: Description | None = None
        self._latest: tuple[Job, Ran | Declined | Crashed] | None = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._folder.cleanup()

    @property
    def description(self) -> Description:
        """What the framework turned out to be.

        Raises:
            StartError: it cannot be imported.
        """
        self._start()
        assert self._description is not None
        return self._description

    @property
    def folder(self) -> Path:
        """Where the ranks' output is, and where they meet; removed at the end."""
        return Path(self._folder.name)

    def pids(self) -> list[int]:
        """Process ids of the ranks, starting them if need be."""
        self._start()
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, job: Job) -> Ran | Declined | Crashed:
        """Run a job on the ranks of its layout.

        Raises:
            StartError: the framework cannot be imported.
        """
        self._start()
        size = job.layout.world_size
        outcome = _outcome(self._ask((self._enter(size), job), self._connections[:size]))
        if isinstance(outcome, Crashed):
            self._stop()
        elif not isinstance(outcome, Ran):
            self._world = None  # what the framework left half done goes with the world
        return outcome

    def outcome(self, job: Job) -> Ran | Declined | Crashed:
        """What came of a job; its latest outcome is kept for the checks that share it.

        Its time in the framework is that of the first who asks.

        Raises:
            StartError: the framework cannot be imported.
        """
        if self._latest is not None and self._latest[0] == job:
            return self._latest[1]
        outcome = self.run(job)
        kept = replace(outcome, framework_seconds=0.0) if isinstance(outcome, Ran) else outcome
        self._latest = job, kept
        return outcome

    def _enter(self, size: int) -> object:
        from conformance.rank import World

        if not isinstance(self._world, World) or self._world.size != size:
            store = self.folder / f"world-{next(self._worlds)}"
            self._world = World(size=size, store=store, time_limit=self._time_limit)
        return self._world

    def _ask(self, message: object, connections: list[Connection]) -> list[_Answer]:
        for rank, connection in enumerate(connections):
            try:
                connection.send(message)
            except OSError:
                return [_Answer(rank, self._death(rank))]
        return self._gather(connections, self._time_limit)

    def _gather(self, connections: list[Connection], limit: float) -> list[_Answer]:
        """Answers in the order in which they came, then the ranks that gave none."""
        from conformance.rank import Declined

        deadline = time.monotonic() + limit
        pending = {connection: rank for rank, connection in enumerate(connections)}
        answers: list[_Answer] = []
        while pending:
            ready = wait(list(pending), timeout=max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                reply = self._receive(connection, rank)
                answers.append(_Answer(rank, reply))
                if isinstance(reply, _Failure):
                    deadline = min(deadline, time.monotonic() + GRACE)
                elif isinstance(reply, Declined):
                    deadline = min(deadline, time.monotonic() + GRACE_TO_DECLINE)
        silent = [*pending.values()]
        return answers + [_Answer(rank, _silence(silent, limit)) for rank in silent]

    def _receive(self, connection: Connection, rank: int) -> Reply | Ready | _Failure:
        from conformance.rank import Raised

        try:
            reply: Reply | Ready = connection.recv()
        except (EOFError, OSError):
            return self._death(rank)
        if isinstance(reply, Raised):
            waited = any(words in reply.traceback for words in WORDS_OF_A_WAITING_RANK)
            blame = _Blame.WAITED if waited else _Blame.FAILED
            return _Failure(f"rank {rank} raised\n{reply.traceback}", blame)
        return reply

    def _death(self, rank: int) -> _Failure:
        from conformance.rank import without_folders

        process = self._processes[rank]
        process.join(GRACE)
        code = process.exitcode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exited with status {code}"
        )
        output = self._log(rank).read_bytes()[-LOG_TAIL:].decode(errors="replace")
        last_lines = "\n".join(output.strip().splitlines()[-LOG_LINES:])
        words = without_folders(f"rank {rank} {how}\n{last_lines}".strip(), self.source)
        return _Failure(words, _Blame.FAILED)

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def _start(self) -> None:
        if self._processes:
            return
        context = self._start_server()
        from conformance.rank import Post, Ready, serve  # torch, while the server imports it too

        for index in range(self._size):
            post = Post(
                index=index,
                adapter=self.adapter,
                source=self.source,
                log=self._log(index),
                share_cores=self._size > (os.cpu_count() or 1),
            )
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, post), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self._world = None
        for answer in self._gather(self._connections, START_LIMIT):
            if isinstance(answer.reply, _Failure):
                self._stop()
                raise StartError(f"{self.adapter.name} cannot be loaded: {answer.reply.message}")
            assert isinstance(answer.reply, Ready)
            self._description = answer.reply.description

    def _start_server(self) -> ForkServerContext:
        preload.announce(self.adapter, self.source)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload.__name__])
        forkserver.ensure_running()
        return context

    def _stop(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._connections.clear()
        self._processes.clear()


def _silence(ranks: list[int], limit: float) -> _Failure:
    """Of all ranks that gave no answer: which of them the others wait for is not known."""
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return _Failure(f"{names} gave no answer in {limit:g} s", _Blame.SILENT)


def _outcome(answers: list[_Answer]) -> Ran | Declined | Crashed:
    from conformance.rank import Declined, Observed

    by_rank = [answer.reply for answer in sorted(answers, key=lambda answer: answer.rank)]
    failures = [answer.reply for answer in answers if isinstance(answer.reply, _Failure)]
    declined = [reply for reply in by_rank if isinstance(reply, Declined)]
    observed = [reply for reply in by_rank if isinstance(reply, Observed)]
    if failures:
        likeliest = max(failures, key=lambda failure: failure.blame)  # of equals the earliest
        if declined and likeliest.blame is not _Blame.FAILED:
            return Crashed(f"{declined[0].message}\n(one rank declined, others ran and waited)")
        return Crashed(likeliest.message)
    if declined and observed:
        return Crashed(f"{declined[0].message}\n(one rank declined, others ran)")
    if declined:
        return declined[0]
    return Ran(
        tuple(reply.observation for reply in observed),
        max(reply.framework_seconds for reply in observed),
    )
