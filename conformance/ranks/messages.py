"""Messages between the controlling process and a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from conformance.ranks.changed import announced

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed import Store  # type: ignore[attr-defined]

    from adapters.contract import Adapter, Description, Observation
    from conformance.findings.trace import RankTrace
    from conformance.findings.verdict import Verdict
    from conformance.ranks.changed import Place
    from conformance.ranks.hardware import Hardware


@dataclass(frozen=True)
class SharedFile:
    """The rendezvous of ranks on one machine: a file."""

    path: Path

    def store(self, world_size: int) -> Store:
        """The store by which a world of this size is initialised."""
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        return FileStore(str(self.path), world_size)


@dataclass(frozen=True)
class SharedStore:
    """The rendezvous of ranks on several machines: keys of a `torch.distributed.TCPStore`."""

    host: str
    port: int
    prefix: str

    def store(self, world_size: int) -> Store:
        """The store by which a world of any size is initialised."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        return PrefixStore(self.prefix, TCPStore(self.host, self.port, is_master=False))


Rendezvous = SharedFile | SharedStore


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The specification that a rank gets once, when it starts."""

    index: int
    adapter: Adapter
    source: Path | None
    hardware: Hardware
    changed: str = field(default_factory=announced)
    """The changed lines of the framework, in a review."""


@dataclass(frozen=True, kw_only=True)
class HostSlot:
    """The slot of a rank on its machine: the ``index``-th of ``ranks``, with a file for its output.

    ``interface`` is the network interface to the other ranks; None if gloo has to find it.
    """

    index: int
    ranks: int
    log: Path
    interface: str | None


@dataclass(frozen=True, kw_only=True)
class World:
    """A `torch.distributed` world; a new ``rendezvous`` makes a new world of the same size."""

    size: int
    rendezvous: Rendezvous
    time_limit: float


@dataclass(frozen=True)
class Ready:
    """The process ``pid`` has imported the framework."""

    description: Description
    pid: int


@dataclass(frozen=True)
class Observed:
    """The framework ran."""

    observation: Observation
    trace: RankTrace | None = None
    """The operations of the rank, in a job that is recorded."""

    held: tuple[tuple[float, ...], ...] = ()
    """The original entries at each call of a replaced operation."""


@dataclass(frozen=True)
class Declined:
    """The framework lacks a capability that the job needs, or refused the job."""

    verdict: Literal["unsupported", "refused"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception ended the job.

    ``verdict`` says who is to blame: crashed, refused or not driven. ``words`` are the type and the
    first meaningful line of the exception, and ``place`` is where it was raised.
    """

    verdict: Verdict
    words: str
    place: str | None
    traceback: str


Reply = Observed | Declined | Raised


@dataclass(frozen=True)
class Answered:
    """The outcome of loading or of a job on a rank, with its seconds in the framework's code."""

    reply: Reply | Ready
    framework_seconds: float = 0.0
    ran: frozenset[Place] = frozenset()
    """The changed statements that the rank ran, in a review."""
