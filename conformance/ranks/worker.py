"""A rank: a process that waits for jobs and runs them through an adapter."""

from __future__ import annotations

import faulthandler
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract import Job, Rank, Refused, Unsupported
from adapters.contract.batch.altered import painting
from adapters.contract.batch.probed_batch import AlteredBatch
from adapters.contract.job import CodeChange
from adapters.contract.objective import Objective
from adapters.contract.recorded import LOGGED, TRAINING
from conformance.findings.sanitize import sanitize
from conformance.ranks import changed, preload
from conformance.ranks.blame import blame
from conformance.ranks.hardware import Backend, Device, Hardware, gpus
from conformance.ranks.messages import Answered, Declined, Observed, Ready, Reply
from conformance.ranks.recording.groups import remember
from conformance.ranks.recording.stacks import PRINTS_STACKS, passes_by

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from adapters.contract import Adapter, Observation
    from adapters.contract.job import Replacement
    from conformance.ranks.messages import HostSlot, WorkerSpec, World
    from conformance.ranks.recording.jaxprs import JaxRecorder
    from conformance.ranks.recording.recorder import Recorder


BACKENDS = {
    Backend.GLOO: "gloo",
    # Frameworks gather logged numbers on the CPU even if they train with NCCL.
    Backend.NCCL: "cpu:gloo,cuda:nccl",
}
"""torch's names for the backends."""


LOCAL_RANK = "LOCAL_RANK"
"""Environment variable of torchrun that frameworks use as the index of a GPU."""


def serve(connection: Connection, spec: WorkerSpec, slot: HostSlot) -> None:
    """Load the framework, then answer every (world, job) until the connection closes."""
    _settle(slot)
    remember(passes_by(spec.adapter))
    changed.note_all_of(spec.changed)
    try:
        rank = Rank(
            index=spec.index,
            world_size=0,
            device=_device(spec.hardware, slot),
            dtype=spec.hardware.dtype,
        )
        description = preload.load_once(spec.adapter, spec.source)
        description = replace(description, dtype=spec.hardware.dtype)
        connection.send(Answered(Ready(description, os.getpid())))
    except BaseException as error:
        connection.send(Answered(blame(error, spec.adapter, spec.source)))
        return
    current: World | None = None
    while True:
        try:
            world, job = connection.recv()
        except (EOFError, OSError):
            return
        reply: Reply
        try:
            if world != current:
                rank = _enter(world, rank, spec)
                current = world
            reply = _answer(spec, job, rank)
        except BaseException as error:
            reply = blame(error, spec.adapter, spec.source)
        _forget_output()
        connection.send(Answered(reply, rank.drain_framework_seconds(), changed.drain()))


def _forget_output() -> None:
    """Empty the log: last words must belong to the last job, and output must not fill the disk."""
    with suppress(OSError, ValueError):  # a framework may have closed the file
        sys.stdout.flush()
        os.ftruncate(1, 0)


def _answer(spec: WorkerSpec, job: Job, rank: Rank) -> Reply:
    TRAINING.begin()
    try:
        with painting(job.painted):
            if job.is_recorded:
                return _recorded(spec, job, rank)
            if job.replaced is not None:
                return _observe_replacing(spec, job, rank, job.replaced)
            observation = _observed(spec.adapter, job, rank)
    except Unsupported as reason:
        return Declined("unsupported", sanitize(str(reason), spec.source))
    except Refused as reason:
        return Declined("refused", sanitize(str(reason), spec.source))
    except Exception as error:
        if not isinstance(job.replaced, CodeChange):
            raise
        return Declined("refused", sanitize(f"an edit raised {error!r}", spec.source))
    return Observed(observation)


def _observed(adapter: Adapter, job: Job, rank: Rank) -> Observation:
    """The adapter's observation, with all numbers that the framework logs."""
    LOGGED.drain()
    observation = _altered(adapter, job, rank)
    return replace(observation, logged=LOGGED.drain())


def _altered(adapter: Adapter, job: Job, rank: Rank) -> Observation:
    """The adapter's observation, with the record of an altered column or of the router, if any."""
    if job.poison is not None:
        AlteredBatch.read.clear()
        observation = adapter.observe(job, rank)
        return replace(observation, reads_poison=job.poison.column in AlteredBatch.read)
    if job.attached is None and job.objective is not Objective.ROUTER:
        return adapter.observe(job, rank)
    from adapters.toolkit import probe  # a slow import that few jobs need

    probe.LEAVES.clear()
    probe.ROUTED.clear()
    observation = adapter.observe(job, rank)
    routed = sum(probe.ROUTED.drain())
    return replace(observation, attached_gradient=probe.gradient_of_attached(), routed=routed)


def _recorded(spec: WorkerSpec, job: Job, rank: Rank) -> Observed:
    recorder = _recorder(spec.adapter)
    with recorder:
        observation = spec.adapter.observe(job, rank)
    return Observed(observation, recorder.trace)


def _observe_replacing(
    spec: WorkerSpec, job: Job, rank: Rank, replaced: Replacement | CodeChange
) -> Observed:
    """The adapter's observation while values or operations of the framework are replaced."""
    from conformance.ranks.recording.replacing import replacing_mode

    with replacing_mode(replaced, rank.index, passes_by(spec.adapter)) as replacing:
        observation = _observed(spec.adapter, job, rank)
    return Observed(observation, held=tuple(replacing.held))


def _recorder(adapter: Adapter) -> Recorder | JaxRecorder:
    """The recorder for operations of the framework's library, torch or JAX."""
    if adapter.library == "jax":
        from conformance.ranks.recording.jaxprs import JaxRecorder

        return JaxRecorder(passes_by(adapter))
    from conformance.ranks.recording.recorder import Recorder

    return Recorder(passes_by(adapter))


def _enter(world: World, old: Rank, spec: WorkerSpec) -> Rank:
    """Leave the process's current world, if any, and join another."""
    old.cache.clear()
    if dist.is_initialized():
        spec.adapter.leave_world()
        dist.destroy_process_group()
    os.environ.update(RANK=str(old.index), WORLD_SIZE=str(world.size))
    dist.init_process_group(
        BACKENDS[spec.hardware.backend],
        store=world.rendezvous.store(world.size),
        rank=old.index,
        world_size=world.size,
        timeout=timedelta(seconds=world.time_limit),
    )
    return replace(old, world_size=world.size, cache={})


def _device(hardware: Hardware, slot: HostSlot) -> str:
    """The device of a rank, made torch's current device; ranks are dealt to GPUs in turn.

    Raises:
        RuntimeError: the machine has no GPU.
    """
    if hardware.device is Device.CPU:
        preload.hide_gpus()
        os.environ.pop(LOCAL_RANK, None)
        return "cpu"
    found = gpus()
    if not found:
        raise RuntimeError("--device=cuda needs a GPU and torch finds none on a rank's machine")
    number = slot.index % found
    os.environ[LOCAL_RANK] = str(number)
    torch.cuda.set_device(number)
    return f"cuda:{number}"


def _settle(slot: HostSlot) -> None:
    """Make this process log to its file, yield to other processes, and die with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)  # child processes of the framework join the group
    # Thus the temporary files of killed ranks are removed with the ranks' folder.
    tempfile.tempdir = os.environ["TMPDIR"] = str(slot.log.parent)
    _die_with_the_fork_server()
    with slot.log.open("ab", buffering=0) as log:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(PRINTS_STACKS, file=2)
    torch.set_num_threads(1)
    # Python shows a warning only once in a process, so the last output of a job would depend on
    # earlier jobs.
    warnings.showwarning = _ignore
    if sys.platform == "linux":
        if slot.interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", slot.interface)
        if slot.ranks > (os.cpu_count() or 1):
            # With SCHED_BATCH, ranks that wait leave the core to ranks that work: a small
            # all_reduce on 4 ranks and 2 cores takes 0.8 ms instead of 4.8.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _ignore(*_: object, **__: object) -> None:
    pass


def _die_with_the_fork_server() -> None:
    """End with the fork server; it ends once all processes, this one too, close its pipe."""
    preload.die_with_parent(signal.SIGKILL)
    life_line = getattr(multiprocessing.forkserver._forkserver, "_forkserver_alive_fd", None)
    if life_line is not None:
        os.close(life_line)
