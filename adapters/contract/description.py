"""What a loaded framework turned out to be."""

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


@dataclass(frozen=True)
class Departure:
    """One way in which a run differs from a user's, and in a line why no verdict depends on it."""

    kind: DepartureKind
    what: str
    why: str


is_set, stubbed, passed_by, not_run = (partial(Departure, kind) for kind in DepartureKind)


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

    places: Mapping[CodeLocation, str] = field(default_factory=dict)
    """Functions of the framework, as `code_location` writes them, each where such a mistake must
    have been made."""

    rules: Mapping[str, str] = field(default_factory=dict)
    """Rules of the corpus' configurations and logs, by name, that this version states itself, each
    with where it does: a document, a help text, its validation or its tests.
    To break any other rule is no mistake."""

    permits: Mapping[str, str] = field(default_factory=dict)
    """Rules of others, by name, of which this version states the opposite, each with where."""

    stubs: tuple[str, ...] = ()
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
