"""The ranks of a step: this process, and copies of it that are made in the midst of the user's loop.

Forked copies go on where this process is: they hold the user's trainer, fixtures and imports, run
the loop's body at the same time on their own samples, and end when their world does. A fork takes
30 ms, where a fresh interpreter that imports torch and the test's modules takes 4 s (measured on
two cores), and cannot have what the test made before the loop. It is safe as long as the copy
starts no thread pool that its parent had: torch uses one thread in it, as in workers of its data
loader. What does not survive a fork is CUDA, and autograd's threads for GPUs; both are refused, and
`torchrun` starts the ranks instead. Then this process is one of torchrun's and forks nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from conformance.own_trainer.errors import WrongUseError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WAITED = ("Connection closed by peer", "Timed out", "Connection reset", "gloo")
"""Words of the errors of a rank that waited for another."""

AUTOGRAD_AND_FORK = "Unable to handle autograd's threading"
"""Torch's words where a process that used autograd on a machine with GPUs was forked."""

USE_TORCHRUN = (
    "run `torchrun --nproc-per-node={size} -m pytest` with the same test, or hide the GPUs with"
    " CUDA_VISIBLE_DEVICES="
)

GRACE = 5.0
"""Seconds that a copy has to end, or to say what it died of."""


def launched() -> int | None:
    """The number of ranks that torchrun started; None if it started none."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


class World:
    """The ranks that run a step at the same time, in a process group.

    ``rank`` is that of this process. Ranks other than the first are told what to run.

    Raises:
        WrongUseError: this process cannot be forked.
    """

    def __init__(self, size: int, time_limit: float) -> None:
        self.size, self.rank = size, 0
        self._children: dict[int, tuple[int, Connection]] = {}
        self._report: Connection | None = None
        self._folder: str | None = None
        self._before = dict(os.environ)
        self._owns_group = not dist.is_initialized()
        self._group: Any = None
        if launched() is None:
            self._folder = tempfile.mkdtemp(prefix="rl-loss-conformance-")
            self._fork()
        self._join(timedelta(seconds=time_limit))

    @property
    def is_copy(self) -> bool:
        """Whether this process ends with the world."""
        return self._report is not None

    def _fork(self) -> None:
        if self.size > 1 and torch.cuda.is_initialized():
            raise WrongUseError(
                "CUDA is initialised in this process, and cannot be used in a copy of it",
                USE_TORCHRUN.format(size=self.size),
            )
        for rank in range(1, self.size):
            reader, writer = Pipe(duplex=False)
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads: see above
                pid = os.fork()
            if pid == 0:
                self.rank, self._report, self._children = rank, writer, {}
                torch.set_num_threads(1)
                return
            writer.close()
            self._children[rank] = pid, reader

    def _join(self, time_limit: timedelta) -> None:
        if self._owns_group and self._folder is None:
            dist.init_process_group("gloo", timeout=time_limit)
        elif self._owns_group:
            if self.size > 1:
                names = ("RANK", "LOCAL_RANK")
                os.environ.update(dict.fromkeys(names, str(self.rank)), WORLD_SIZE=str(self.size))
            store = dist.FileStore(f"{self._folder}/world", self.size)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.size, timeout=time_limit
            )
        if self._report is None:
            self.rank = dist.get_rank()
        _forget_accelerate()
        self._group = dist.new_group(backend="gloo", timeout=time_limit)

    def tell(self, what: Any = None) -> Any:
        """Send something from the first rank to all others; returns it on every rank."""
        sent = [what]
        dist.broadcast_object_list(sent, src=0, group=self._group)
        return sent[0]

    def gather(self, mine: Any) -> list[Any]:
        """What every rank has."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def close(self) -> None:
        """Leave the process group; copies end, whatever they do."""
        if self.is_copy:
            _end(0)
        if self._owns_group and dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(self._before)
        self._reap()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _reap(self) -> None:
        deadline = time.monotonic() + GRACE
        for pid, reader in self._children.values():
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    break
                time.sleep(0.001)
            reader.close()
        self._children = {}

    def left(self, error: BaseException | None) -> BaseException | None:
        """The loop was left, perhaps by an exception: returns the one to be shown.

        A copy hands its exception over and ends here. The first rank shows it if its own is only
        that it waited in vain.
        """
        if self._report is not None:
            if error is not None:
                with suppress(OSError):
                    self._report.send("".join(traceback.format_exception(error)))
            _end(1 if error else 0)
        told = None
        if error is not None and any(word in str(error) for word in WAITED):
            told = self._told()
        for pid, _ in self._children.values():  # they may wait for this rank
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if told is None:
            return error
        rank, words = told
        hint = f"\n{USE_TORCHRUN.format(size=self.size)}" if AUTOGRAD_AND_FORK in words else ""
        return RuntimeError(f"rank {rank} of {self.size} raised:\n{words}{hint}")

    def _told(self) -> tuple[int, str] | None:
        """The first copy that handed an exception over, and its traceback."""
        for rank, (_, reader) in self._children.items():
            with suppress(EOFError, OSError):
                if reader.poll(GRACE):
                    return rank, reader.recv()
        return None


def _forget_accelerate() -> None:
    """Have Accelerate, which keeps the ranks of the first world for ever, look at this one."""
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def _end(status: int) -> None:
    """End a copy at once: what its parent does at its end is not its to do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
