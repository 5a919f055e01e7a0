"""The ranks of a loop: this process, and copies of it that are made when the loop begins.

Forked copies continue from the state of this process: they have the test's imports and fixtures,
run the loop's body at the same time on their own samples, and end with the loop. A fork takes 30
ms. A fresh interpreter that imports torch and the test's modules takes 4 s (measured on two cores),
and lacks the objects that the test made before the loop. Forking is safe because:

- A copy uses one thread, as workers of torch's data loader do, and restarts no thread pool of its
parent.
- It never destroys an object that has threads in the parent, such as the process group of an
earlier loop: that would wait for threads which do not exist in the copy.
- CUDA, and autograd's threads for GPUs, do not survive a fork. Processes with either are refused;
users start the ranks with `torchrun` instead, and nothing is forked.
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
"""Words in the errors of a rank that waited for another rank."""

AUTOGRAD_AND_FORK = "Unable to handle autograd's threading"
"""Torch's message in a fork of a process that used autograd on a machine with GPUs."""

USE_TORCHRUN = (
    "run `torchrun --nproc-per-node={size} -m pytest` with the same test, or hide the GPUs with"
    " CUDA_VISIBLE_DEVICES="
)

GRACE = 5.0
"""Seconds that a copy has to end, or to send its exception."""

_FORMER: list[Any] = []
"""The process groups of earlier loops, which no copy may destroy."""


def launched() -> int | None:
    """The number of ranks that torchrun started; None if it started none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return dist.get_world_size() if dist.is_initialized() else None


class Launched:
    """Ranks started by torchrun, or by a program that has initialised the process group itself."""

    def __init__(self, size: int, time_limit: float) -> None:
        self._is_owner = not dist.is_initialized()
        limit = timedelta(seconds=time_limit)
        if self._is_owner:
            dist.init_process_group("gloo", timeout=limit)
        self.rank, self._size = dist.get_rank(), size
        self.words = ""
        self._group = dist.new_group(backend="gloo", timeout=limit)

    def run(self, size: int, what: Any) -> None:
        """On the first rank: send the job to all other ranks."""
        dist.broadcast_object_list([what], src=0, group=self._group)

    def next_job(self) -> Any:
        """On another rank: wait for the next job; None at the end, which may set ``words``."""
        sent: list[Any] = [None]
        dist.broadcast_object_list(sent, src=0, group=self._group)
        [job] = sent
        if isinstance(job, str):
            self.words = job
            return None
        return job

    def gather(self, size: int, mine: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        found: list[Any] = [None] * self._size
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def close(self, words: str) -> None:
        """End the loop on all ranks, with a message on what is wrong, or an empty one."""
        if self.rank == 0:
            self.run(self._size, words)
        self.drop()

    def drop(self) -> None:
        """Leave the process group if the loop made it."""
        if self._is_owner and dist.is_initialized():
            dist.destroy_process_group()

    def leave(self, error: BaseException | None) -> BaseException | None:
        """The error to raise after the loop was left."""
        return error


class Copies:
    """This process as the first rank, and copies of it for the other ranks.

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
        if size > 1:
            gc.collect()  # otherwise copies would destroy the objects that are garbage here
        for rank in range(1, size):
            if self._fork(rank):
                break
        else:
            _FORMER.clear()

    def _fork(self, rank: int) -> bool:
        """Fork a copy; returns True in the copy."""
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of forks of processes with threads; the module's docstring says why this
            # one is safe.
            warnings.simplefilter("ignore", DeprecationWarning)
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
        """On the first rank: join a world of a size, and send the job to its other ranks."""
        is_entered = size == self._size and dist.is_initialized()
        store = "" if is_entered else f"{self._folder}/world-{next(self._worlds)}"
        for rank in range(1, size):
            self._children[rank][1].send((size, store, what))
        if store:
            self._join(size, store)

    def next_job(self) -> Any:
        """On another rank: wait for the next job, and join its world; None at the end."""
        assert self._parent is not None
        try:
            size, store, what = self._parent.recv()
        except EOFError:
            return None
        if store:
            self._join(size, store)
        return what

    def gather(self, size: int, mine: Any) -> list[Any]:
        """The values of all ranks, returned on the first rank only.

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
            answer, failure = None, "it died without an error message"
        if failure:
            raise RankFailedError(self._words(rank, failure))
        return answer

    def _words(self, rank: int, failure: str) -> str:
        hint = USE_TORCHRUN.format(size=self._size) if AUTOGRAD_AND_FORK in failure else ""
        return "\n".join([f"rank {rank} of {self._size} raised:", failure, hint]).rstrip()

    def _join(self, size: int, store: str) -> None:
        """Leave the previous world, and join another."""
        self._leave()
        self._size = size
        os.environ |= {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "localhost",  # some frameworks only test whether it is set
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
        """End the copies; in a copy this does not return, and needs no message."""
        if self._parent is not None:
            _end(0)
        self.drop()

    def drop(self) -> None:
        """Close the connections to the copies, ended or not, and leave the world."""
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

    def leave(self, error: BaseException | None) -> BaseException | None:
        """End the copies after the loop was left, perhaps by an error; returns the error to raise.

        A copy sends its error to the first rank and ends here. If the first rank's own error only
        says that another rank did not answer, a copy's error is raised instead.
        """
        if self._parent is not None:
            if error is not None:
                with suppress(OSError):
                    self._parent.send((None, "".join(traceback.format_exception(error))))
            _end(1 if error else 0)
        shown = error
        if error is not None and any(word in str(error) for word in WAITED):
            shown = self._first_failure() or error
        for pid, _ in self._children.values():  # a copy may wait for this rank
            os.kill(pid, signal.SIGKILL)
        return shown

    def _first_failure(self) -> RankFailedError | None:
        """The error of the first copy that sent one."""
        for rank, (_, connection) in self._children.items():
            with suppress(EOFError, OSError):
                if connection.poll(GRACE):
                    _, failure = connection.recv()
                    if failure:
                        return RankFailedError(self._words(rank, failure))
        return None


def _forget_worlds() -> None:
    """Reset Accelerate and DeepSpeed, which keep the ranks of the first world."""
    if "deepspeed" in sys.modules:
        deepspeed.import_deepspeed()
        deepspeed.forget_engines()
        deepspeed.leave_world()
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def _end(status: int) -> None:
    """End a copy at once, without the exit handlers of its parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
