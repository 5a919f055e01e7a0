"""A rank: a process that waits for jobs and runs them through an adapter."""

from __future__ import annotations

import ctypes
import multiprocessing.forkserver
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from adapters.contract import Adapter, Description, Job, Observation, Rank, Refused, Unsupported
from conformance import preload

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path


LOG_LIMIT = 1 << 20
"""Bytes that a rank's output may have when a job begins."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A `torch.distributed` world; a new ``store`` file makes a new one of the same size."""

    size: int
    store: Path
    time_limit: float


@dataclass(frozen=True, kw_only=True)
class Post:
    """What a rank is told once, when it starts."""

    index: int
    adapter: Adapter
    source: Path | None
    log: Path
    share_cores: bool


@dataclass(frozen=True)
class Ready:
    """The framework is imported."""

    description: Description


@dataclass(frozen=True)
class Observed:
    """The framework ran."""

    observation: Observation
    framework_seconds: float


@dataclass(frozen=True)
class Declined:
    """The framework lacks what was asked for, or refused it, in the words of ``message``."""

    verdict: Literal["unsupported", "refused"]
    message: str


@dataclass(frozen=True)
class Raised:
    """The framework, or the adapter, failed."""

    traceback: str


Reply = Observed | Declined | Raised


def serve(connection: Connection, post: Post) -> None:
    """Load the framework, then answer every (world, job) until the connection closes."""
    _settle(post)
    try:
        preload.load_once(post.adapter, post.source)
        connection.send(Ready(post.adapter.describe()))
    except BaseException:
        connection.send(Raised(_traceback(post.source)))
        return
    current: World | None = None
    rank = Rank(index=post.index, world_size=0)
    while True:
        try:
            world, job = connection.recv()
        except (EOFError, OSError):
            return
        reply: Reply
        try:
            if world != current:
                rank = _enter(world, rank)
                current = world
            reply = _answer(post.adapter, job, rank)
        except BaseException:
            reply = Raised(_traceback(post.source))
        _forget_old_output()
        connection.send(reply)


def _forget_old_output() -> None:
    """Keep what a chatty framework prints from filling the disk."""
    with suppress(OSError):  # it may have closed the file
        if os.fstat(1).st_size > LOG_LIMIT:
            os.ftruncate(1, 0)


def _traceback(source: Path | None) -> str:
    """That of the exception at hand."""
    return without_folders(traceback.format_exc(), source)


def without_folders(text: str, source: Path | None) -> str:
    """Words of a framework, with files named from where they are imported.

    A report tells nothing of the folders of a machine, and reads the same on every one.
    """
    folders = [*sys.path, str(source or "")]
    for folder in sorted(filter(None, folders), key=len, reverse=True):
        text = text.replace(f"{folder.rstrip(os.sep)}{os.sep}", "")
    return text


def _answer(adapter: Adapter, job: Job, rank: Rank) -> Reply:
    rank.take_framework_seconds()
    try:
        observation = adapter.observe(job, rank)
    except Unsupported as reason:
        return Declined("unsupported", str(reason))
    except Refused as reason:
        return Declined("refused", str(reason))
    return Observed(observation, rank.take_framework_seconds())


def _enter(world: World, old: Rank) -> Rank:
    """Leave the world this process is in, if any, and join another."""
    old.cache.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.update(RANK=str(old.index), WORLD_SIZE=str(world.size))
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(world.store), world.size),  # type: ignore[attr-defined]
        rank=old.index,
        world_size=world.size,
        timeout=timedelta(seconds=world.time_limit),
    )
    return Rank(index=old.index, world_size=world.size)


def _settle(post: Post) -> None:
    """Make this process a quiet one that shares the machine and outlives nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    with post.log.open("ab", buffering=0) as log:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if post.share_cores:
            # Waiting ranks then leave the core to those with work: a small all_reduce on 4 ranks
            # and 2 cores takes 0.8 ms instead of 4.8.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _die_with_parent() -> None:
    """Have the kernel kill this process when the fork server ends, even one stuck in native code.

    The fork server ends when nobody holds its life line any more, so ranks must not hold it.
    """
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    life_line = getattr(multiprocessing.forkserver._forkserver, "_forkserver_alive_fd", None)
    if life_line is not None:
        os.close(life_line)
