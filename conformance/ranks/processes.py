"""Processes of ranks: starting them, killing them, and finding out how they ended."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

from conformance.findings.errors import TemporaryFolderError
from conformance.findings.sanitize import sanitize
from conformance.ranks import preload
from conformance.ranks.messages import HostSlot, Rendezvous, SharedFile, WorkerSpec
from conformance.ranks.recording.stacks import PRINTS_STACKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext


SECONDS_TO_DIE = 3.0
"""The most seconds between the end of a rank's connection and the end of its process."""

LONGEST_TEMPORARY_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
"""The most bytes of the folder's path: the limit on the path of a Unix socket, less the names that
multiprocessing adds."""

WHAT = "what():"
"""The prefix that C++ prints before the message of an uncaught exception."""

LOG_LINES = 5
"""The number of lines of a dead process's output that a finding quotes."""

LOG_TAIL = 100_000
"""Bytes at the end of a dead process's output that are searched for last lines and stacks."""

FATAL = "Fatal Python error:"
"""The line of `faulthandler` before the stacks of a process that a signal kills."""

STACK = re.compile(r"^(?:Current thread|Thread) 0x.*\n(?:  File .*\n?)+", re.MULTILINE)
"""The stack of the running thread, or of another thread, the most recent call first."""

SECONDS_TO_PRINT = 3.0
"""Seconds for a process to print the stacks of its threads."""

CURRENT = "Current thread 0x"

POLLING = ("gloo_tcp_loop", "pt_gloo_runloop")
"""Names of gloo's polling threads. With Megatron's dozens of process groups, they use some
hundredths of a core while all ranks wait."""

RACED_SIZES = re.compile(r"\d+ vs \d+(?=\. Received data size)")
"""Sizes in gloo's error on a collective mismatch, which differ from run to run as ranks race."""


@dataclass(frozen=True)
class Death:
    """The end of a rank, with its last words, and whether its job may be the reason.

    ``stack`` is its whole Python stack, if a signal killed it in native code.
    """

    words: str
    is_of_job: bool = True
    stack: str = ""


class RankProcess(Protocol):
    """The process of one rank, on this machine or another."""

    def death(self) -> Death:
        """The end of the rank, in words without folders of its machine."""

    def stacks(self) -> str:
        """The stacks of its threads, the main thread's last; empty if unknown."""

    def cpu_seconds(self) -> float:
        """The CPU seconds so far of the process and its children; 0 if the process is lost."""

    def kill(self) -> None:
        """Kill the process."""

    def reap(self) -> None:
        """Wait until the killed process has ended."""


@dataclass(frozen=True)
class Running:
    """A rank's process and the connection to the rank."""

    process: RankProcess
    connection: Connection


class LocalLauncher:
    """Starts ranks on this machine from this process, and provides their rendezvous."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rl-loss-conformance-")
        self.meetings = count()

    @property
    def folder(self) -> Path:
        """The folder of the ranks' output and rendezvous files; `close` removes it."""
        return Path(self._folder.name)

    def start(self, specs: Sequence[WorkerSpec]) -> list[Running]:
        """Start a process for each worker, in order."""
        slots = [
            HostSlot(
                index=spec.index,
                ranks=len(specs),
                log=self.folder / f"rank-{spec.index}.log",
                interface="lo",
            )
            for spec in specs
        ]
        return [running(spec, slot) for spec, slot in zip(specs, slots, strict=True)]

    def rendezvous(self) -> Rendezvous:
        """A new rendezvous: an unused file."""
        return SharedFile(self.folder / f"world-{next(self.meetings)}")

    def close(self) -> None:
        """Remove logs and rendezvous files, after all ranks have ended."""
        self._folder.cleanup()


class LocalProcess:
    """A process of this machine's fork server, which serves a connection."""

    def __init__(self, spec: WorkerSpec, slot: HostSlot, connection: Connection) -> None:
        context = start_server(spec)
        self._spec = spec
        self._log = slot.log
        self._log.write_bytes(b"")  # an earlier rank may have filled it
        self._process = context.Process(target=_serve, args=(connection, spec, slot), daemon=True)
        self._process.start()
        connection.close()

    def death(self) -> Death:
        """The end of the process; its exit status is lost if the fork server was killed first."""
        self._process.join(SECONDS_TO_DIE)
        who, code = f"rank {self._spec.index}", self._process.exitcode
        if _fork_server_is_dead():
            return Death(f"{who} was lost: the fork server was killed", is_of_job=False)
        output = self._log.read_bytes()
        return Death(
            last_words(who, code, output, self._spec.source), stack=stack_of_the_dead(output)
        )

    def stacks(self) -> str:
        """The stacks of its threads, which the process prints on a signal."""
        assert self._process.pid is not None
        before = self._log.stat().st_size
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, PRINTS_STACKS)
        printed = ""
        for _ in range(30):
            time.sleep(SECONDS_TO_PRINT / 30)
            whole = self._log.read_bytes()[before:].decode(errors="backslashreplace")
            if whole and whole == printed:
                break
            printed = whole
        return printed

    def cpu_seconds(self) -> float:
        """The CPU seconds of its threads and children, except polling threads of process groups."""
        with suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            threads = (one for one in process.threads() if not _polls(one.id))
            own = sum(one.user_time + one.system_time for one in threads)
            return own + _children_seconds(process)
        return 0.0

    def kill(self) -> None:
        """Kill the process and the processes that it started."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def reap(self) -> None:
        """Wait until the killed process has ended."""
        self._process.join()
        self._process.close()


def _fork_server_is_dead() -> bool:
    """Whether the fork server, a child of this process, has ended and was not started again."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is None:
        return False
    with suppress(ChildProcessError):  # tests share the fork server of their parent process
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _serve(connection: Connection, spec: WorkerSpec, slot: HostSlot) -> None:
    """Run as a rank; only this process imports torch."""
    from conformance.ranks.worker import serve

    serve(connection, spec, slot)


def last_words(who: str, code: int | None, output: bytes, source: Path | None) -> str:
    """Words on the end of a process, with the C++ error, if any, and its last output.

    If a signal killed it in native code, its Python stack follows, the most recent call first.
    """
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exited with status {code}"
    )
    printed = RACED_SIZES.sub("other sizes", _tail(output).partition(FATAL)[0])
    last_lines = printed.strip().splitlines()[-LOG_LINES:]
    calls = stack_of_the_dead(output).splitlines()[1 : 1 + LOG_LINES]
    reasons = [line.partition(WHAT)[2].strip() for line in last_lines if WHAT in line]
    first = ": ".join([f"{who} {how}", *reasons[-1:]])
    return sanitize("\n".join([first, *last_lines, *calls]).strip(), source)


def stack_of_the_dead(output: bytes) -> str:
    """The stack of the thread that a signal killed in native code, as `faulthandler` prints it.

    If no Python thread was running, it is the stack of the main thread; empty if there is none.
    """
    stacks = _tail(output).partition(FATAL)[2]
    of_threads = STACK.findall(stacks)
    return "".join(of_threads[0 if CURRENT in stacks else -1 :][:1])


def _tail(output: bytes) -> str:
    return output[-LOG_TAIL:].decode(errors="backslashreplace")


def require_room_for_sockets() -> None:
    """Require a temporary folder with a path short enough for the sockets of processes.

    Raises:
        TemporaryFolderError: the paths of sockets would be too long.
    """
    folder = tempfile.gettempdir()
    length = len(os.fsencode(folder))
    if length > LONGEST_TEMPORARY_FOLDER:
        raise TemporaryFolderError(
            f"the folder for temporary files, {folder}, has a path of {length} bytes, and sockets"
            f" in it need one of at most {LONGEST_TEMPORARY_FOLDER}",
            "set TMPDIR to a shorter one, such as /tmp",
        )


def running(spec: WorkerSpec, slot: HostSlot) -> Running:
    """Start a rank on this machine, connected to this process."""
    ours, theirs = start_server(spec).Pipe()
    return Running(LocalProcess(spec, slot, theirs), ours)


def start_server(spec: WorkerSpec) -> ForkServerContext:
    """Start a fork server that preloads a worker's modules, unless this process already has one."""
    preload.announce(spec.adapter, spec.source, spec.hardware)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload.__name__, "conformance.ranks.worker"])
    forkserver.ensure_running()
    return context


def _children_seconds(process: psutil.Process) -> float:
    """Seconds of CPU time of a process's children, including ended ones."""
    ended = process.cpu_times()
    seconds = ended.children_user + ended.children_system
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return float(seconds)


def _polls(thread: int) -> bool:
    """Whether a thread, by its system id, is a polling thread of a process group."""
    with suppress(psutil.Error):
        return psutil.Process(thread).name() in POLLING
    return True  # the thread has ended
