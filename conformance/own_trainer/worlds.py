"""The ranks of a loop: this process, and copies of it that are made when the loop begins.

Forked copies go on where this process is: they hold the test's imports and fixtures, run the loop's
body at the same time on their own samples, and end with the loop. A fork takes 30 ms, where a fresh
interpreter that imports torch and the test's modules takes 4 s (measured on two cores), and cannot
have what the test made before the loop. What makes it safe:

- A copy uses one thread, as workers of torch's data loader do, and starts no pool that its parent
  had.
- It never destroys what its parent's threads belong to, such as a process group of an earlier loop:
  that waits for threads which a copy has not got.
- CUDA, and autograd's threads for GPUs, do not survive a fork. Both are refused, and `torchrun`
  starts the ranks instead; then nothing is forked.
"""

from __future__ import annotations

import gc
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
from itertools import count
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from adapters.engines import deepspeed
from conformance.findings.errors import RankFailedError, WrongUseError

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

_FORMER: list[Any] = []
"""The process groups of the loop before, which no copy may destroy."""


def launched() -> int | None:
    """The number of ranks that torchrun started; None if it started none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return dist.get_world_size() if dist.is_initialized() else None


class Launched:
    """Ranks that torchrun started, or a program that has made their process group itself."""

    def __init__(self, size: int, time_limit: float) -> None:
        self._is_owner = not dist.is_initialized()
        limit = timedelta(seconds=time_limit)
        if self._is_owner:
            dist.init_process_group("gloo", timeout=limit)
        self.rank, self._size = dist.get_rank(), size
        self.words = ""
        self._group = dist.new_group(backend="gloo", timeout=limit)

    def run(self, size: int, what: Any) -> None:
        """On the first rank: tell all others what to run."""
        dist.broadcast_object_list([what], src=0, group=self._group)

    def told(self) -> Any:
        """On another rank: what to run; None at the end, after which there may be ``words``."""
        sent: list[Any] = [None]
        dist.broadcast_object_list(sent, src=0, group=self._group)
        [told] = sent
        if isinstance(told, str):
            self.words = told
            return None
        return told

    def gather(self, size: int, mine: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        found: list[Any] = [None] * self._size
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def close(self, words: str) -> None:
        """End the loop on all ranks, with words on what is wrong or none."""
        if self.rank == 0:
            self.run(self._size, words)
        self.drop()

    def drop(self) -> None:
        """Leave the process group if the loop made it."""
        if self._is_owner and dist.is_initialized():
            dist.destroy_process_group()

    def left(self, error: BaseException | None) -> BaseException | None:
        """The exception to be shown."""
        return error


class Copies:
    """This process as the first rank, and copies of it for the others.

    Raises:
        WrongUseError: this process cannot be forked.
    """

    words = ""

    def __init__(self, size: int, time_limit: float) -> None:
        if size > 1 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise WrongUseError(
                "CUDA is initialised in this process, and cannot be used in a copy of it",
                USE_TORCHRUN.format(size=size),
            )
        self.rank, self._size = 0, 1
        self._time_limit = timedelta(seconds=time_limit)
        self._folder = tempfile.mkdtemp(prefix="rl-loss-conformance-")
        self._environment = dict(os.environ)
        self._worlds = count()
        self._children: dict[int, tuple[int, Connection]] = {}
        self._parent: Connection | None = None
        gc.collect()  # what is destroyed here need not be kept from copies
        for rank in range(1, size):
            if self._fork(rank):
                break
        else:
            _FORMER.clear()

    def _fork(self, rank: int) -> bool:
        """Make a copy; returns whether this is it."""
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: see above
            pid = os.fork()
        if pid:
            there.close()
            self._children[rank] = pid, here
            return False
        gc.freeze()
        torch.set_num_threads(1)
        self.rank, self._parent, self._children = rank, there, {}
        return True

    def run(self, size: int, what: Any) -> None:
        """On the first rank: enter a world of a size, and tell its other ranks what to run."""
        is_entered = size == self._size and dist.is_initialized()
        store = "" if is_entered else f"{self._folder}/world-{next(self._worlds)}"
        for rank in range(1, size):
            self._children[rank][1].send((size, store, what))
        if store:
            self._join(size, store)

    def told(self) -> Any:
        """On another rank: what to run, in the world that it belongs to; None at the end."""
        assert self._parent is not None
        try:
            size, store, what = self._parent.recv()
        except EOFError:
            return None
        if store:
            self._join(size, store)
        return what

    def gather(self, size: int, mine: Any) -> list[Any]:
        """The values of all ranks, on the first.

        Raises:
            RankFailedError: a copy has raised, or died.
        """
        if self._parent is not None:
            self._parent.send((mine, ""))
            return []
        return [mine, *(self._answer(rank) for rank in range(1, size))]

    def _answer(self, rank: int) -> Any:
        try:
            answer, failure = self._children[rank][1].recv()
        except (EOFError, OSError):
            answer, failure = None, "it died without a word"
        if failure:
            raise RankFailedError(self._words(rank, failure))
        return answer

    def _words(self, rank: int, failure: str) -> str:
        hint = USE_TORCHRUN.format(size=self._size) if AUTOGRAD_AND_FORK in failure else ""
        return "\n".join([f"rank {rank} of {self._size} raised:", failure, hint]).rstrip()

    def _join(self, size: int, store: str) -> None:
        """Leave the world of before, and join another."""
        self._leave()
        self._size = size
        os.environ |= {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "localhost",  # some only look whether it is set
            "MASTER_PORT": "29500",
        }
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, size),  # type: ignore[attr-defined]
            rank=self.rank,
            world_size=size,
            timeout=self._time_limit,
        )
        _forget_worlds()

    def _leave(self) -> None:
        if dist.is_initialized():
            _FORMER.extend(dist.distributed_c10d._world.pg_map)
            with suppress(RuntimeError):
                dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(self._environment)

    def close(self, words: str) -> None:
        """End the copies, in which this does not return; they have no use for words."""
        if self._parent is not None:
            _end(0)
        self.drop()

    def drop(self) -> None:
        """Let go of the copies, which may have ended, and of the process group."""
        for _, connection in self._children.values():
            connection.close()
        self._leave()
        self._reap()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reap(self) -> None:
        deadline = time.monotonic() + GRACE
        for pid, _ in self._children.values():
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    break
                time.sleep(0.001)
        self._children = {}

    def left(self, error: BaseException | None) -> BaseException | None:
        """The loop was left, perhaps by an exception: returns the one to be shown.

        A copy hands its exception over and ends here. The first rank shows it unless it
        has an exception of its own that is not a time-out.
        """
        if self._parent is not None:
            if error is not None:
                with suppress(OSError):
                    self._parent.send((None, "".join(traceback.format_exception(error))))
            _end(1 if error else 0)
        shown = error
        if error is not None and any(word in str(error) for word in WAITED):
            shown = self._first_failure() or error
        for pid, _ in self._children.values():  # they may wait for this rank
            os.kill(pid, signal.SIGKILL)
        return shown

    def _first_failure(self) -> RankFailedError | None:
        """The exception of the first copy that handed one over."""
        for rank, (_, connection) in self._children.items():
            with suppress(EOFError, OSError):
                if connection.poll(GRACE):
                    _, failure = connection.recv()
                    if failure:
                        return RankFailedError(self._words(rank, failure))
        return None


def _forget_worlds() -> None:
    """Have Accelerate and DeepSpeed, which keep the first world's ranks, look at this one."""
    if "deepspeed" in sys.modules:
        deepspeed.import_deepspeed()
        deepspeed.forget_engines()
        deepspeed.leave_world()
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def _end(status: int) -> None:
    """End a copy at once: what its parent does at its end is not its to do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
