"""The description of a loaded framework."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from reference.aggregation import DEFAULT_CONVENTIONS, Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.configuration import FaultInjection, Setting
    from adapters.contract.job import Depth
    from adapters.contract.layout import Option
    from adapters.contract.objective import Metric, Objective


class CodeLocation(StrEnum):
    """A place in a framework that a mistake determines; most mistakes determine none."""

    TOKEN_COUNT = "token_count"
    """The function that counts the tokens for `token_mean`."""

    TOKEN_DIVISION = "token_division"
    """The function that divides by the token count."""

    LOG = "log"
    """The function that combines the log entries of micro-batches."""

    ARGUMENTS = "arguments"
    """The startup validation of configurations."""

    SHARDING = "sharding"
    """The function that deals samples to data-parallel ranks."""

    REDUCTION = "reduction"
    """The function that makes gradients be reduced after the last micro-batch only."""


class DepartureKind(StrEnum):
    """The ways in which a run under an adapter can differ from a user's."""

    SET = "set"
    """An option or a value that the adapter sets."""

    STUBBED = "stubbed"
    """Code that is replaced by the adapter's."""

    PASSED_BY = "passed_by"
    """A check or a step of the framework's own that is not executed."""

    NOT_RUN = "not_run"
    """Code above the call at which the adapter enters."""


@dataclass(frozen=True)
class Departure:
    """A difference from a user's run, and why no verdict depends on it."""

    kind: DepartureKind
    what: str
    why: str


is_set, stubbed, passed_by, not_run = (partial(Departure, kind) for kind in DepartureKind)


@dataclass(frozen=True, kw_only=True)
class Description:
    """The features of a loaded framework, as found by inspecting it.

    The first eight are its capabilities. What is not among them is not run, and listed as
    unsupported; what is among them and is not delivered counts as wrong.
    """

    modes: frozenset[Mode] = frozenset()
    depths: frozenset[Depth] = frozenset()
    objectives: frozenset[Objective] = frozenset()
    metrics: frozenset[Metric] = frozenset()
    """The metrics that this version logs where a job has their terms."""

    options: frozenset[Option] = frozenset()
    """The options of layouts."""

    largest_tp: int = 1
    """The largest supported number of tensor-parallel ranks."""

    configurations: Mapping[Setting | FaultInjection, tuple[str, ...]] = field(default_factory=dict)
    """What `Job.configuration` may set, each with the words by which the framework names it: an
    error that refuses a value must contain one of them."""

    records_forward_passes: bool = False
    """Whether an observation has `forward_passes`."""

    default_mode: Mode = Mode.SAMPLE_MEAN
    """The mode that is trained if a user chooses none."""

    conventions: Conventions = DEFAULT_CONVENTIONS
    dtype: str = "float32"
    """Dtype of the parameters; `Rank.dtype` replaces it."""

    places: Mapping[CodeLocation, str] = field(default_factory=dict)
    """The function of the framework at each place, as `code_location` writes it."""

    rules: Mapping[str, str] = field(default_factory=dict)
    """Rules of configurations and logs, by name, that this version states, each with the place: a
    document, a help text, its validation or its tests. Breaking any other rule is no mistake."""

    permits: Mapping[str, str] = field(default_factory=dict)
    """Rules, by name, of which this version states the opposite, each with the place."""

    stubs: tuple[str, ...] = ()
    """Packages that the framework imports, the loss never uses, and this run replaced by stubs."""

    departures: tuple[Departure, ...] = ()
    """All differences from a user's run, except the stubs."""


def code_location(function: Any) -> str:
    """The place where a function or class is defined, as ``package/module.py:LINE (name)``.

    Decorators that keep ``__wrapped__`` are unwrapped.
    """
    original = inspect.unwrap(function)
    line = inspect.getsourcelines(original)[1]
    return f"{original.__module__.replace('.', '/')}.py:{line} ({original.__qualname__})"
