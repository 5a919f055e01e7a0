"""The class that an adapter derives from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.contract.description import Description
    from adapters.contract.job import Job
    from adapters.contract.layout import Layout
    from adapters.contract.observation import LogEntry, Observation


class Unsupported(Exception):  # noqa: N818 - a verdict, not an error
    """The framework has no such mode, depth or layout; the message says which."""


class Refused(Exception):  # noqa: N818 - a verdict, not an error
    """The framework itself declined to run, before any step, with an error of its own."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The place of this process in an initialised `torch.distributed` world.

    ``device`` is where its tensors belong: ``cpu``, or one such as ``cuda:1``, which is torch's
    current one then. ``dtype`` is what a model's parameters are to be in where they are computed
    with, by the framework's own mixed precision where it has one. ``cache`` is for what is costly
    to build and valid as long as the world is: process groups, device meshes, wrapped models.
    """

    index: int
    world_size: int
    device: str = "cpu"
    dtype: str = "float32"
    cache: dict[Any, Any] = field(default_factory=dict)
    _framework_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def framework(self) -> Iterator[None]:
        """Wrap calls into the framework's own code, so that our share of the time is known."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._framework_seconds.append(time.perf_counter() - start)

    def drain_framework_seconds(self) -> float:
        """Seconds spent in the framework since last asked."""
        seconds = sum(self._framework_seconds)
        self._framework_seconds.clear()
        return seconds


class Adapter(ABC):
    """Drives one framework with one of its training engines. Instances are pickled to the ranks.

    A framework with several engines has an adapter class for each, all of one ``name``.
    """

    name: ClassVar[str]
    """What a user types after ``--adapter=``."""

    package: ClassVar[str | None] = None
    """The framework's top-level import package; None where the adapter is its own framework."""

    distribution: ClassVar[str | None] = None
    """The distribution on PyPI that installs the real framework, if any."""

    tree: ClassVar[tuple[str, ...]] = ()
    """Folders of its repository that a commit's sources are taken from; all if empty."""

    engine: ClassVar[str] = "torch"
    """What a user types after ``--engine=``."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of `Rank.device` that it can drive its framework on."""

    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    """Each `Rank.dtype` that it can drive its framework with."""

    dependencies: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions may change a result; the report lists them."""

    @abstractmethod
    def layouts(self) -> Sequence[Layout]:
        """Layouts worth running, grouped so that neighbours take the same number of ranks."""

    @abstractmethod
    def load(self, source: Path | None) -> None:
        """Import the framework in this process, from ``source`` if given, else as installed.

        Raises:
            ImportError: the framework or something it needs is missing.
        """

    @abstractmethod
    def describe(self) -> Description:
        """Find out what the loaded framework offers, by looking at it and not at its version."""

    @abstractmethod
    def observe(self, job: Job, rank: Rank) -> Observation:
        """Run the job on this rank; called on all ranks of the layout at once.

        Raises:
            Unsupported: the framework has no such mode, depth or layout.
            Refused: its startup validation declined the configuration.
        """

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Have the framework make one log of the entries of a rank's micro-batches, world of one.

        Raises:
            Unsupported: the framework has no such form of entry, or makes logs in another way.
            Exception: whatever the framework raises.
        """
        raise Unsupported(f"the adapter of {self.name} makes no logs")
