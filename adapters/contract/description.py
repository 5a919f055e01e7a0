"""The description of a loaded framework."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from adapters.contract.job import Depth
from adapters.contract.objective import Objective
from reference.aggregation import DEFAULT_CONVENTIONS, Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.layout import Option


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
    """The features of a loaded framework, as found by inspecting it."""

    modes: frozenset[Mode] = frozenset(Mode)
    default_mode: Mode = Mode.SAMPLE_MEAN
    """The mode that is trained if a user chooses none."""

    depths: frozenset[Depth] = frozenset(Depth)
    options: frozenset[Option] = frozenset()
    largest_tp: int = 1
    """The largest supported number of tensor-parallel ranks."""

    objectives: frozenset[Objective] = frozenset({Objective.POLICY})
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
