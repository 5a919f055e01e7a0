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
    """The meeting place of the ranks of one machine."""

    path: Path

    def store(self, world_size: int) -> Store:
        """The store that a world of this size is made through."""
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        return FileStore(str(self.path), world_size)


@dataclass(frozen=True)
class SharedStore:
    """The meeting place of ranks of several machines: keys of a `torch.distributed.TCPStore`."""

    host: str
    port: int
    prefix: str

    def store(self, world_size: int) -> Store:
        """The store that a world of any size is made through."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        return PrefixStore(self.prefix, TCPStore(self.host, self.port, is_master=False))


Rendezvous = SharedFile | SharedStore


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The specification that a rank is given once, when it starts."""

    index: int
    adapter: Adapter
    source: Path | None
    hardware: Hardware
    changed: str = field(default_factory=announced)
    """The changed lines of the framework, in a review."""


@dataclass(frozen=True, kw_only=True)
class HostSlot:
    """A place for a rank on its machine: the ``index``-th of ``ranks``, with a file for its output.

    ``interface`` is what it is to reach the others through, None where gloo is to find out.
    """

    index: int
    ranks: int
    log: Path
    interface: str | None


@dataclass(frozen=True, kw_only=True)
class World:
    """A `torch.distributed` world; a new ``rendezvous`` makes a new one of the same size."""

    size: int
    rendezvous: Rendezvous
    time_limit: float


@dataclass(frozen=True)
class Ready:
    """The framework is imported, in the process ``pid``."""

    description: Description
    pid: int


@dataclass(frozen=True)
class Observed:
    """The framework ran."""

    observation: Observation
    trace: RankTrace | None = None
    """The operations of the rank, in a job that is recorded."""

    held: tuple[tuple[float, ...], ...] = ()
    """The values that were replaced, each time."""


@dataclass(frozen=True)
class Declined:
    """The framework lacks what was asked for, or refused it, in the words of ``message``."""

    verdict: Literal["unsupported", "refused"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception ended the job.

    ``verdict`` says whose failure that is: crashed, refused or not driven. ``words`` are the type
    and the telling line of the exception, and ``place`` is where it was raised.
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
    """The changed statements that it ran, in a review."""
