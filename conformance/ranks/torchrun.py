"""Ranks in the processes that torchrun started, on one machine or several.

Rank 0 of them runs pytest. Each of the others serves it: on request it starts a rank in a process
of its own, which connects to rank 0 by itself, and puts an end to it. A rank that dies takes
no other process with it. They find rank 0 through the store that torchrun keeps.
"""

from __future__ import annotations

import secrets
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.findings.errors import LaunchError
from conformance.ranks.hardware import RankBudget
from conformance.ranks.messages import HostSlot, Rendezvous, SharedStore, WorkerSpec
from conformance.ranks.preload import die_with_parent
from conformance.ranks.processes import Death, LocalLauncher, LocalProcess, Running, running

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection


PREFIX = "rl-loss-conformance"
"""The prefix of keys in torchrun's store."""

LOST = 3
"""Exit status of a process that rank 0 left without a word: that of pytest's internal errors."""

SECONDS_TO_LEAVE = 5.0
"""For the other processes, once rank 0 has told them to."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place that torchrun gave to a process: ``local`` is on this machine, the rest on all."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    machines: int
    host: str
    port: int
    """The address of torchrun's store."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Launch | None:
        """Read what torchrun set; None where it did not start this process.

        Raises:
            LaunchError: torchrun keeps no store.
        """
        if "TORCHELASTIC_RUN_ID" not in environ:
            return None
        if environ["TORCHELASTIC_USE_AGENT_STORE"] != "True":
            raise LaunchError(
                "torchrun keeps its store from its processes, which find each other there",
                "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
            )
        return cls(
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
            machines=int(environ["GROUP_WORLD_SIZE"]),
            host=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
        )

    def rank_budget(self, max_ranks: int | None) -> RankBudget:
        """As many as torchrun started, if a user does not want fewer."""
        if max_ranks is not None and max_ranks < self.world_size:
            return replace(RankBudget.of(max_ranks), here=self.local_world_size)
        return RankBudget(
            ranks=self.world_size,
            here=self.local_world_size,
            rule=f"torchrun started {self.world_size} processes, one for each",
            way_out="start {needed} with --nproc-per-node and --nnodes",
        )

    def shared(self, name: str) -> SharedStore:
        """A part of torchrun's store."""
        return SharedStore(self.host, self.port, f"{PREFIX}/{name}")

    def slot(self, folder: Path) -> HostSlot:
        """The place that this machine has for the rank of this process."""
        return HostSlot(
            index=self.local_rank,
            ranks=self.local_world_size,
            log=folder / f"rank-{self.rank}.log",
            interface="lo" if self.machines == 1 else None,
        )


@dataclass(frozen=True)
class Address:
    """The address of rank 0, and the key to be heard."""

    host: str
    port: int
    key: bytes

    def connect(self) -> Connection:
        """A new connection."""
        return Client((self.host, self.port), authkey=self.key)


class WorkerCommand(Enum):
    """An order of rank 0 to another process; to start a rank it sends the `WorkerSpec`."""

    KILL = auto()
    TELL_ITS_DEATH = auto()
    TELL_ITS_STACKS = auto()
    TELL_ITS_CPU_SECONDS = auto()


@dataclass(frozen=True)
class Shutdown:
    """The last order."""

    status: int


class RemoteWorkers:
    """The other processes, as rank 0 commands them."""

    def __init__(self, launch: Launch) -> None:
        die_with_parent(signal.SIGINT)  # which pytest takes for the end of a run
        host, key = _own_address(launch), secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=launch.world_size, authkey=key)
        port = self._listener.address[1]
        _publish(launch, Address(host, int(port), key))
        arrivals = (self._listener.accept() for _ in range(1, launch.world_size))
        self._orders = {connection.recv(): connection for connection in arrivals}

    def start(self, spec: WorkerSpec) -> Running:
        """The rank that a spec describes, connected to this process."""
        orders = self._orders[spec.index]
        orders.send(spec)
        return Running(_RemoteProcess(spec.index, orders), self._listener.accept())

    def dismiss(self, status: int) -> None:
        """Have all leave with this exit status."""
        for orders in self._orders.values():
            with suppress(OSError):
                orders.send(Shutdown(status))
        # torchrun ends the others once we have failed: not before they have cleaned up.
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        staying = set(self._orders.values())
        while staying and (leaving := wait(staying, max(deadline - time.monotonic(), 0))):
            staying.difference_update(leaving)
        self._listener.close()


class _RemoteProcess:
    """A rank in the care of another process."""

    def __init__(self, index: int, orders: Connection) -> None:
        self._index = index
        self._orders = orders

    def death(self) -> Death:
        """The end of the rank, in the words of the process that started it."""
        try:
            self._orders.send(WorkerCommand.TELL_ITS_DEATH)
            death: Death = self._orders.recv()
        except (EOFError, OSError):
            words = f"rank {self._index} was lost with the process that torchrun started for it"
            return Death(words)
        return death

    def stacks(self) -> str:
        """The stacks of its threads, from the process that started it."""
        try:
            self._orders.send(WorkerCommand.TELL_ITS_STACKS)
            stacks: str = self._orders.recv()
        except (EOFError, OSError):
            return ""
        return stacks

    def cpu_seconds(self) -> float:
        """The CPU seconds that it has used, from the process that started it."""
        try:
            self._orders.send(WorkerCommand.TELL_ITS_CPU_SECONDS)
            seconds: float = self._orders.recv()
        except (EOFError, OSError):
            return 0.0
        return seconds

    def kill(self) -> None:
        """Put an end to it."""
        with suppress(OSError):
            self._orders.send(WorkerCommand.KILL)

    def reap(self) -> None:
        """Nothing to wait for: no order is followed before the one that kills."""


class TorchrunLauncher(LocalLauncher):
    """A rank for each process that torchrun started, the first of them in our care.

    The others remove their logs when they leave.
    """

    def __init__(self, launch: Launch, workers: RemoteWorkers) -> None:
        super().__init__()
        self._launch = launch
        self._workers = workers

    def start(self, specs: Sequence[WorkerSpec]) -> list[Running]:
        """The others first: they load the framework while we do."""
        others = [self._workers.start(spec) for spec in specs[1:]]
        return [running(specs[0], self._launch.slot(self.folder)), *others]

    def rendezvous(self) -> Rendezvous:
        """A part of torchrun's store, which all machines reach."""
        return self._launch.shared(f"world-{next(self.meetings)}")


def serve(launch: Launch) -> int:
    """Follow the orders of rank 0 until it has us leave; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends on it, and says so
    die_with_parent(signal.SIGKILL)
    address = _find(launch)
    with address.connect() as orders, tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as folder:
        orders.send(launch.rank)
        return _follow(orders, address, launch.slot(Path(folder)))


def _follow(orders: Connection, address: Address, slot: HostSlot) -> int:
    process: LocalProcess | None = None
    try:
        while not isinstance(order := orders.recv(), Shutdown):
            if isinstance(order, WorkerSpec):
                process = LocalProcess(order, slot, address.connect())
            elif process is not None:
                process = _obey(order, process, orders)
        return order.status
    except (EOFError, OSError):
        return LOST
    finally:
        if process is not None:
            process.kill()


def _obey(order: WorkerCommand, process: LocalProcess, orders: Connection) -> LocalProcess | None:
    """The state of a rank's process after an order."""
    if order is WorkerCommand.TELL_ITS_DEATH:
        orders.send(process.death())
        return process
    if order is WorkerCommand.TELL_ITS_STACKS:
        orders.send(process.stacks())
        return process
    if order is WorkerCommand.TELL_ITS_CPU_SECONDS:
        orders.send(process.cpu_seconds())
        return process
    process.kill()
    process.reap()
    return None


def _publish(launch: Launch, address: Address) -> None:
    text = f"{address.host} {address.port} {address.key.hex()}"
    launch.shared("address").store(launch.world_size).set("rank-0", text)


def _find(launch: Launch) -> Address:
    """The address of rank 0, as soon as it listens."""
    text: bytes = launch.shared("address").store(launch.world_size).get("rank-0")
    host, port, key = text.decode().split()
    return Address(host, int(port), bytes.fromhex(key))


def _own_address(launch: Launch) -> str:
    """The address of this machine in the network in which it reaches torchrun's store."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((launch.host, launch.port))  # sends nothing
        return str(probe.getsockname()[0])
