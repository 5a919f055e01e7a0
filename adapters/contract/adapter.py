"""The base class of adapters."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract.job import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from adapters.contract.description import Description
    from adapters.contract.framework import Framework
    from adapters.contract.job import Job, LogEntry, Observation
    from adapters.contract.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Rank:
    """This process in an initialised `torch.distributed` world.

    ``device`` is the device of its tensors: ``cpu``, or torch's current CUDA device such as
    ``cuda:1``. ``dtype`` is the dtype of parameters in computations, set by the framework's own
    mixed precision if it has one. ``cache`` is for costly objects that are valid as long as the
    world exists: process groups, device meshes, wrapped models.
    """

    index: int
    world_size: int
    device: str = "cpu"
    dtype: str = "float32"
    cache: dict[Any, Any] = field(default_factory=dict)
    _framework_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def framework(self) -> Iterator[None]:
        """Measure the time spent in the framework's own code inside the context."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._framework_seconds.append(time.perf_counter() - start)

    def drain_framework_seconds(self) -> float:
        """Return the seconds spent in the framework since the last call."""
        seconds = sum(self._framework_seconds)
        self._framework_seconds.clear()
        return seconds


class Adapter(ABC):
    """Drives one framework, called ``name``, with one of its engines; pickled to the ranks."""

    name: ClassVar[str]  # the value of ``--adapter=``
    engine: ClassVar[str] = "torch"  # the value of ``--engine=``
    # package to import; None if the adapter is its own framework
    package: ClassVar[str | None] = None
    library: ClassVar[str] = "torch"  # the array library of the framework: ``torch`` or ``jax``
    # the distribution on PyPI that installs the framework, if any
    distribution: ClassVar[str | None] = None
    release_tags: ClassVar[str] = ""  # the beginning of a release's tag, before its version
    # folders to extract from the framework's repository; all if empty
    tree: ClassVar[tuple[str, ...]] = ()
    roots: ClassVar[tuple[str, ...]] = (".",)  # folders of that repository to import packages from
    devices: ClassVar[tuple[str, ...]] = ()  # kinds of `Rank.device`, such as ``cpu`` and ``cuda``
    dtypes: ClassVar[tuple[str, ...]] = ()  # values of `Rank.dtype`, such as ``float32``
    versions: ClassVar[str] = ""  # the versions of the framework that the adapter drives, in words
    dependencies: ClassVar[tuple[str, ...]] = ()  # distributions whose versions may change a result
    # Whether the framework adds padding samples if a step has too few samples for all ranks and
    # micro-batches.
    fills_up: ClassVar[bool] = False
    framework: ClassVar[Framework | None] = None  # the record of the framework, if there is one
    # The function that reads users' recipes, as ``module:function``; see `contract.recipe`.
    recipes: ClassVar[str] = ""
    # The framework's names of its reductions, each with the mode as `Aggregation.parse` reads it; a
    # mode whose divisor users give is listed without the divisor. By default, the names in the
    # record.
    mode_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Take the names of modes from the class's record, unless the class sets ``mode_names``."""
        super().__init_subclass__()
        own = vars(cls)
        if "mode_names" not in own and own.get("framework") is not None:
            cls.mode_names = own["framework"].mode_names

    def layouts(self) -> Sequence[Layout]:
        """The layouts to run, grouped by number of ranks; by default the layouts of the record."""
        return self.framework.driven if self.framework else ()

    @abstractmethod
    def load(self, source: Path | None) -> None:
        """Import the framework in this process, from ``source`` if given; raises `ImportError`."""

    @abstractmethod
    def describe(self) -> Description:
        """Describe the loaded framework by inspecting its code instead of its version."""

    @abstractmethod
    def observe(self, job: Job, rank: Rank) -> Observation:
        """Run the job on this rank, and at the same time on all ranks of the layout.

        Raises `Unsupported` if the framework has no such mode, depth or layout, and `Refused` if
        its startup validation declined the configuration.
        """

    def leave_world(self) -> None:  # noqa: B027 - most frameworks keep nothing
        """Drop process groups and other state that the framework keeps of a world about to end."""

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Let the framework merge the log entries of a rank's micro-batches into one log.

        Raises `Unsupported` if the framework has no such entries or makes logs in another way; any
        other exception comes from the framework.
        """
        raise Unsupported(f"the adapter of {self.name} makes no logs")
