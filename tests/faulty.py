"""Adapters of frameworks that harm the process in which they run; see `tests.broken`."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from adapters.contract import Job, LogEntry, Observation, Rank, Refused
from adapters.native.trainer import Trainer
from tests.broken import Faulty, TwoLayouts, Vanishing


class KilledInCollective(Faulty):
    """A rank is killed by SIGKILL while both ranks wait in a collective."""

    def fail(self) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        dist.barrier()
        dist.barrier()


class KilledWithItsServer(Faulty):
    """The fork server of the ranks is killed, and the ranks die with it."""

    def fail(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


class KilledAfterwards(Faulty):
    """The last rank is killed after its step, before it sends the result."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observation = TwoLayouts.observe(self, job, rank)
        if rank.index == 1 and not job.steps[0].active_tokens[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return observation


class HangingInNativeCode(Faulty):
    """Holds the interpreter's lock for ever, so that no signal handler of Python runs.

    A signal would end a sleep, but a read starts again.
    """

    def fail(self) -> None:
        never_written, _ = os.pipe()
        ctypes.PyDLL(None).read(never_written, ctypes.create_string_buffer(1), 1)


class Wandering(TwoLayouts):
    """Changes the folder, ignores signals, and starts a thread that does not end."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        os.chdir("/")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(600,)).start()
        return super().observe(job, rank)


class Shouting(TwoLayouts):
    """Prints megabytes in every step."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for _ in range(8):
            print("warning: " + "x" * (1 << 20), flush=True)
        return super().observe(job, rank)


class Silent(TwoLayouts):
    """Closes standard input, output and error, to which others may want to write."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (0, 1, 2):
            with suppress(OSError):
                os.close(number)
        return super().observe(job, rank)


class Lingering(TwoLayouts):
    """Leaves a file that says that it has begun, and then sleeps."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        Path("here").touch()
        time.sleep(600)
        return super().observe(job, rank)


GARBAGE = "\udcff\0\x1b[2J"
"""An undecodable byte, a NUL, and the sequence that clears a terminal."""


class Garbled(Faulty):
    """Puts characters into all its texts that cannot be written to a file or shown."""

    def fail(self) -> None:
        error = RuntimeError(f"no kernel image {GARBAGE}")
        raise error

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        if {*entries[0].keys} != {*entries[-1].keys}:
            raise ValueError(f"keys {GARBAGE}")
        return {f"loss {GARBAGE}": 1.5}


class GarbledLastWords(Faulty):
    def fail(self) -> None:
        os.write(2, b"no kernel image \xff\0\x1b[2J\n")
        os._exit(7)


class GarbledRefusal(TwoLayouts):
    def observe(self, job: Job, rank: Rank) -> Observation:
        raise Refused(f"no kernel image {GARBAGE}")


class FailingToLog(TwoLayouts):
    """Fails to aggregate logs, in the way in which another adapter fails in a job."""

    def __init__(self, other: Faulty | None = None) -> None:
        self.other = other or Vanishing()

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        self.other.fail()
        return {}


class Spawning(TwoLayouts):
    """Starts a process in every step and forgets it; the last rank is killed in some steps."""

    def __init__(self, pids: Path) -> None:
        self.pids = pids

    def observe(self, job: Job, rank: Rank) -> Observation:
        started = subprocess.Popen(["sleep", "600"])
        with self.pids.open("a") as file:
            file.write(f"{started.pid}\n")
        if rank.index == 1 and not job.steps[0].active_tokens[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().observe(job, rank)


class NotFinite(TwoLayouts):
    """Its gradient is infinite at the probe's second entry, and NaN at the last entry."""

    def trainer(self, job: Job, rank: int) -> Trainer:
        return _NotFinite(job, rank)


class _NotFinite(Trainer):
    def synchronise(self, gradient: torch.Tensor) -> None:
        super().synchronise(gradient)
        gradient[1] = float("inf")
        gradient[-1] = float("nan")


class RaisingInOneMicroBatch(TwoLayouts):
    """The last rank fails in its second micro-batch, after it has trained the first one."""

    def trainer(self, job: Job, rank: int) -> Trainer:
        return _RaisingInSecond(job, rank)


class _RaisingInSecond(Trainer):
    losses = 0

    def loss(self, *arguments: object) -> object:  # type: ignore[override]
        self.losses += 1
        if self.losses == 2 and self.dp_rank == self.layout.dp - 1 and self.layout.dp > 1:
            error = FloatingPointError("loss is not finite")
            raise error
        return super().loss(*arguments)  # type: ignore[arg-type]
