"""Ranks in the processes that torchrun started, on one machine or several.

Rank 0 runs pytest. Each other process serves rank 0: on request it starts a rank in a child
process, or kills that rank. The rank connects to rank 0 directly. A rank that dies takes no other
process with it. All processes find rank 0 through torchrun's store.
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
"""Exit status of a process whose rank 0 vanished: the status of pytest's internal errors."""

SECONDS_TO_LEAVE = 5.0
"""Seconds for the other processes to end, once rank 0 has told them to."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A process in torchrun's launch; ``local`` fields are of its machine only."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    machines: int
    host: str
    port: int
    """The port of torchrun's store, at ``host``."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Launch | None:
        """Read torchrun's environment variables; None if torchrun did not start this process.

        Raises:
            LaunchError: torchrun keeps no store that its processes share.
        """
        if "TORCHELASTIC_RUN_ID" not in environ:
            return None
        if environ["TORCHELASTIC_USE_AGENT_STORE"] != "True":
            raise LaunchError(
                "torchrun does not share its store, through which ranks find each other",
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
        """The number of processes that torchrun started, or fewer if the user wants fewer."""
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
        """The slot of this process's rank on its machine."""
        return HostSlot(
            index=self.local_rank,
            ranks=self.local_world_size,
            log=folder / f"rank-{self.rank}.log",
            interface="lo" if self.machines == 1 else None,
        )


@dataclass(frozen=True)
class Address:
    """The address of rank 0, and the key that authenticates connections."""

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
    """The order to exit with ``status``."""

    status: int


class RemoteWorkers:
    """Rank 0's connections to the other processes, which follow its orders."""

    def __init__(self, launch: Launch) -> None:
        die_with_parent(signal.SIGINT)  # pytest ends the run on SIGINT
        host, key = _own_address(launch), secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=launch.world_size, authkey=key)
        port = self._listener.address[1]
        _publish(launch, Address(host, int(port), key))
        arrivals = (self._listener.accept() for _ in range(1, launch.world_size))
        self._orders = {connection.recv(): connection for connection in arrivals}

    def start(self, spec: WorkerSpec) -> Running:
        """Start the rank of a spec, connected to this process."""
        orders = self._orders[spec.index]
        orders.send(spec)
        return Running(_RemoteProcess(spec.index, orders), self._listener.accept())

    def dismiss(self, status: int) -> None:
        """Have all other processes exit with this status."""
        for orders in self._orders.values():
            with suppress(OSError):
                orders.send(Shutdown(status))
        # torchrun kills the remaining processes once this process has failed, so they must clean up
        # first.
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        staying = set(self._orders.values())
        while staying and (leaving := wait(staying, max(deadline - time.monotonic(), 0))):
            staying.difference_update(leaving)
        self._listener.close()


class _RemoteProcess:
    """A rank that another process has started and watches."""

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
        """The CPU seconds of the rank so far, from the process that started it."""
        try:
            self._orders.send(WorkerCommand.TELL_ITS_CPU_SECONDS)
            seconds: float = self._orders.recv()
        except (EOFError, OSError):
            return 0.0
        return seconds

    def kill(self) -> None:
        """Have the other process kill the rank."""
        with suppress(OSError):
            self._orders.send(WorkerCommand.KILL)

    def reap(self) -> None:
        """Do nothing: the other process follows no order before it has killed the rank."""


class TorchrunLauncher(LocalLauncher):
    """Starts a rank for each of torchrun's processes; this process watches the first rank itself.

    The other processes remove their logs when they exit.
    """

    def __init__(self, launch: Launch, workers: RemoteWorkers) -> None:
        super().__init__()
        self._launch = launch
        self._workers = workers

    def start(self, specs: Sequence[WorkerSpec]) -> list[Running]:
        """Start the ranks, the remote ones first, so that all load the framework at once."""
        others = [self._workers.start(spec) for spec in specs[1:]]
        return [running(specs[0], self._launch.slot(self.folder)), *others]

    def rendezvous(self) -> Rendezvous:
        """A new rendezvous in torchrun's store, which all machines reach."""
        return self._launch.shared(f"world-{next(self.meetings)}")


def serve(launch: Launch) -> int:
    """Follow the orders of rank 0 until it dismisses this process; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends on Ctrl-C, and reports it
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
    """Follow an order; returns the rank's process, or None once it is killed."""
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
    """Wait for the address of rank 0, which it publishes once it listens."""
    text: bytes = launch.shared("address").store(launch.world_size).get("rank-0")
    host, port, key = text.decode().split()
    return Address(host, int(port), bytes.fromhex(key))


def _own_address(launch: Launch) -> str:
    """The address of this machine in the network of torchrun's store."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((launch.host, launch.port))  # this sends nothing
        return str(probe.getsockname()[0])
