"""What an adapter promises and what it is given.

An adapter drives one framework. It is created in the controlling process, where it only says what
it is and finds its framework; it is pickled to every rank, where it imports the framework and runs
steps. It never sees an expected value.
"""

from __future__ import annotations

import inspect
import re
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapters.configuration import ORDINARY, Configuration
from adapters.objective import Metric, Objective
from reference.aggregation import DEFAULT_CONVENTIONS, Conventions, Mode
from reference.errors import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from reference.aggregation import Aggregation
    from reference.step import Step


class Unsupported(Exception):  # noqa: N818 - a verdict, not an error
    """The framework has no such mode, depth or layout; the message says which."""


class Refused(Exception):  # noqa: N818 - a verdict, not an error
    """The framework itself declined to run, before any step, with an error of its own."""


class Depth(StrEnum):
    """How much of the framework's own code an observation goes through."""

    REDUCER = "reducer"
    """Its reduction function alone, fed with token losses."""

    LOSS = "loss"
    """Its whole loss function, own scaling included."""

    STEP = "step"
    """Its whole train step, up to the gradient its optimizer sees."""


class Place(StrEnum):
    """Where in a framework a mistake must have been made; most mistakes determine no place."""

    TOKEN_COUNT = "token_count"
    """Where the tokens are counted that `token_mean` divides by."""

    TOKEN_DIVISION = "token_division"
    """Where what a step adds up is divided by them."""

    LOG = "log"
    """Where the log entries of micro-batches are put together."""

    ARGUMENTS = "arguments"
    """Where startup validation checks a configuration."""

    SHARDING = "sharding"
    """Where samples are dealt to data-parallel ranks."""

    REDUCTION = "reduction"
    """Where it is set up that gradients are reduced after the last micro-batch and not before."""


class DepartureKind(StrEnum):
    """How a run of a framework under an adapter differs from a user's."""

    SET = "set"
    """An option that the adapter passes, or a value that it gives, to get through."""

    STUBBED = "stubbed"
    """Replaced by code of the adapter's."""

    PASSED_BY = "passed_by"
    """A check or a step of the framework's own that is not executed."""

    NOT_RUN = "not_run"
    """Above the call at which the adapter enters."""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """One way in which a run differs from a user's, and in a line why no verdict depends on it."""

    kind: DepartureKind
    what: str
    why: str


class Combine(StrEnum):
    """What the rest of a train step would do with the gradients the ranks hold."""

    REPLICATED = "replicated"
    """Nothing: every rank holds the final gradient."""

    SUM = "sum"
    MEAN = "mean"

    SUM_PER_COUNTED_TOKEN = "sum_per_counted_token"
    """Add up and divide by all the tokens that the framework counted on the ranks."""

    SUM_PER_TOKEN = "sum_per_token"
    """Add up and divide by the active tokens of the step."""

    SUM_PER_SAMPLE = "sum_per_sample"
    """Add up and divide by the samples of the step, in the unit of the conventions."""


class Option(StrEnum):
    """A setting that changes how a step is run and must not change what it computes."""

    ALLGATHER_CP = "allgather_cp"
    """Context-parallel ranks hold one stretch of the packed row each, and gather the others'."""

    AVERAGE_IN_COLLECTIVE = "average_in_collective"
    """Gradients are averaged by the all-reduce itself and not scaled before it."""

    BALANCE_DATA = "balance_data"
    """Samples are dealt to data-parallel ranks by length."""

    DISTRIBUTED_OPTIMIZER = "distributed_optimizer"
    """Gradients are reduce-scattered: a rank has the final ones of its shard alone."""

    OVERLAP_GRAD_REDUCE = "overlap_grad_reduce"
    """Gradients are reduced bucket by bucket while the backward pass goes on."""


class InvalidLayoutError(ConformanceError):
    """A layout that cannot be read or cannot exist."""


_LAYOUT = re.compile(r"dp(\d+)-cp(\d+)(?:-tp(\d+))?-mb(\d+|uneven|tokens)-(thd|bshd)((?:\+\w+)*)")


@dataclass(frozen=True, kw_only=True, order=True)
class Layout:
    """How a step is cut over ranks and time.

    ``dp``, ``cp`` and ``tp`` count data-, context- and tensor-parallel ranks (Ulysses sequence
    parallelism counts as context parallelism); ranks are numbered along ``tp`` first, then along
    ``cp``. ``micro_batches`` is how many micro-batches a rank's samples are cut into: a number of
    equal ones, ``uneven`` ones of different sample counts, or ones filled up to a budget of
    ``tokens``. ``format`` says how a micro-batch is stored: ``thd`` one sample after another,
    ``bshd`` a row per sample padded to one width. ``options`` are what is set besides.
    """

    dp: int = 1
    cp: int = 1
    tp: int = 1
    micro_batches: int | Literal["uneven", "tokens"] = 1
    format: Literal["thd", "bshd"] = "bshd"
    options: tuple[Option, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "tp", "micro_batches"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InvalidLayoutError(
                    f"{name} of {self} is {value}, but there is at least one", "give 1 or more"
                )
        object.__setattr__(self, "options", tuple(sorted(set(self.options))))

    @property
    def world_size(self) -> int:
        """Number of ranks the layout takes."""
        return self.dp * self.cp * self.tp

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read the form that `str` gives, such as ``dp2-cp2-mbuneven-thd+balance_data``."""
        match = _LAYOUT.fullmatch(text)
        if match is None:
            raise InvalidLayoutError(
                f"layout {text!r} is not of the form dp2-cp1-mb2-thd or dp2-cp1-tp2-mb2-thd"
                " (mb: a number, uneven or tokens; then thd or bshd; then options, such as"
                " +balance_data)"
            )
        dp, cp, tp, micro_batches, storage, options = match.groups()
        return cls(
            dp=int(dp),
            cp=int(cp),
            tp=int(tp or 1),
            micro_batches=int(micro_batches) if micro_batches.isdigit() else micro_batches,  # type: ignore[arg-type]
            format=storage,  # type: ignore[arg-type]
            options=tuple(_option(name, text) for name in options.split("+")[1:]),
        )

    def __str__(self) -> str:
        tp = f"-tp{self.tp}" if self.tp != 1 else ""
        options = "".join(f"+{option}" for option in self.options)
        return f"dp{self.dp}-cp{self.cp}{tp}-mb{self.micro_batches}-{self.format}{options}"


def _option(name: str, layout: str) -> Option:
    try:
        return Option(name)
    except ValueError:
        raise InvalidLayoutError(
            f"option {name!r} of layout {layout} is unknown", f"choose {', '.join(Option)}"
        ) from None


def grids(largest: int) -> list[tuple[int, int]]:
    """Every (dp, cp) out of 1, 2 and 4 on up to ``largest`` ranks, small worlds first."""
    fitting = [(dp, cp) for dp in (1, 2, 4) for cp in (1, 2, 4) if dp * cp <= largest]
    return sorted(fitting, key=lambda grid: grid[0] * grid[1])


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to run on all ranks of a layout: the optimizer steps of one batch of rollouts."""

    steps: tuple[Step, ...]
    aggregation: Aggregation
    layout: Layout
    depth: Depth
    objective: Objective = Objective.POLICY
    configuration: Configuration = ORDINARY


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """What one micro-batch hands on to be logged: sums by name, and what each is divided by.

    ``count`` is the one divisor of all values; ``normalizers``, where a framework knows them, are
    divisors of their own.
    """

    keys: tuple[str, ...]
    values: tuple[float, ...]
    count: float = 1.0
    normalizers: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What one rank saw the framework do.

    ``weights`` holds, for each step of the job, the weight of every response token, flat like
    ``Step.mask``, in float64.
    """

    weights: tuple[NDArray[np.float64], ...]
    combine: Combine = Combine.REPLICATED
    counted_tokens: tuple[float, ...] = ()
    """For each step, what the framework on this rank counted, for `SUM_PER_COUNTED_TOKEN`."""

    forward_passes: tuple[NDArray[np.int32], ...] = ()
    """For each step, the number of the forward pass in which this rank held each response token, -1
    where it did not: how the framework really cut the step. Empty if the adapter does not say."""

    reported: Mapping[Metric, tuple[float | None, ...]] = field(default_factory=dict)
    """For each step, what the framework logs on this rank, after its own reduction over
    micro-batches and ranks; None where this rank logs none. Empty below depth `step`, and without
    what the framework or the adapter does not tell."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a loaded framework turned out to be."""

    modes: frozenset[Mode] = frozenset(Mode)
    default_mode: Mode = Mode.SAMPLE_MEAN
    """What is trained where a user says nothing."""

    depths: frozenset[Depth] = frozenset(Depth)
    options: frozenset[Option] = frozenset()
    largest_tp: int = 1
    """How many tensor-parallel ranks it can be driven with."""

    objectives: frozenset[Objective] = frozenset({Objective.POLICY})
    conventions: Conventions = DEFAULT_CONVENTIONS
    dtype: str = "float32"
    """Of the parameters that it is run with; what `Rank.dtype` asks for replaces it."""

    places: Mapping[Place, str] = field(default_factory=dict)
    """Functions of the framework, as `code_location` writes them, each where such a mistake must
    have been made."""

    rules: Mapping[str, str] = field(default_factory=dict)
    """Rules of the corpus' configurations and logs, by name, that this version states itself, each
    with where it does: a document, a help text, its validation or its tests.
    To break any other rule is no mistake."""

    permits: Mapping[str, str] = field(default_factory=dict)
    """Rules of others, by name, of which this version states the opposite, each with where."""

    stand_ins: tuple[str, ...] = ()
    """Packages the framework imports, the loss never uses, and this run replaced by empty ones."""

    departures: tuple[Departure, ...] = ()
    """Everything in which a run differs from a user's, packages replaced by empty ones apart."""


def code_location(function: Any) -> str:
    """Where a function is defined, as ``package/module.py:LINE (name)``.

    ``function`` is a function or a class; decorators that keep ``__wrapped__`` are looked through.
    """
    original = inspect.unwrap(function)
    line = inspect.getsourcelines(original)[1]
    return f"{original.__module__.replace('.', '/')}.py:{line} ({original.__qualname__})"


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

    def take_framework_seconds(self) -> float:
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
