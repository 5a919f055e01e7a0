"""The description of a loaded framework: its features, its conventions, its departures.

`reference.aggregation.Conventions` says what the modes leave open. An adapter gives its answers by
the names of the fields of that class, each with the place where the framework states it; fields
that it does not name have the default value, which is that of the contract.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract.job import Depth, FaultInjection, Setting
    from adapters.contract.layout import Option
    from adapters.contract.objective import Metric, Objective


Value = TypeVar("Value")


class DepartureKind(StrEnum):
    """The ways in which a run under an adapter can differ from a user's."""

    SET = "set"  # an option or a value that the adapter sets
    STUBBED = "stubbed"  # code that is replaced by the adapter's
    PASSED_BY = "passed_by"  # a check or a step of the framework's own that is not executed
    NOT_RUN = "not_run"  # code above the call at which the adapter enters


@dataclass(frozen=True)
class Departure:
    """A difference from a user's run, and why no verdict depends on it."""

    kind: DepartureKind
    what: str
    why: str


is_set, stubbed, passed_by, not_run = (partial(Departure, kind) for kind in DepartureKind)


class BatchProperty(StrEnum):
    """A property of batches that a framework's own code may exclude."""

    EMPTY_SAMPLE = "a sample without active tokens"


@dataclass(frozen=True)
class FixedMode:
    """The mode that an objective has whatever mode is set, and the place that documents it."""

    mode: Mode
    place: str


@dataclass(frozen=True)
class DefaultValue:
    """The default of an option: as documented, and in a version's configuration."""

    option: str
    documented: Documented[Any]
    actual: object


@dataclass(frozen=True, kw_only=True)
class Description:
    """The features of a loaded framework, as found by inspecting it.

    The first nine are its capabilities. Whatever they leave out is not run and
    listed as unsupported; a declared capability that is not delivered counts as wrong.
    """

    modes: frozenset[Mode] = frozenset()
    depths: frozenset[Depth] = frozenset()
    objectives: frozenset[Objective] = frozenset()
    # The metrics that this version logs where a job has their terms.
    metrics: frozenset[Metric] = frozenset()
    options: frozenset[Option] = frozenset()  # of layouts
    largest_tp: int = 1  # the largest supported number of tensor-parallel ranks
    largest_pp: int = 1  # the largest supported number of pipeline stages
    # What `Job.configuration` may set, each with the words by which the framework names it: an
    # error that refuses a value must contain one of them.
    configurations: Mapping[Setting | FaultInjection, tuple[str, ...]] = field(default_factory=dict)
    records_forward_passes: bool = False  # whether an observation has `forward_passes`
    missing_rewards: bool = False  # whether its types allow a sample to have no reward

    default_mode: Mode = Mode.SAMPLE_MEAN  # the mode that is trained if a user chooses none
    # What the modes leave open, by the fields of `reference.aggregation.Conventions`.
    declared: Mapping[str, Convention] = field(default_factory=dict)
    dtype: str = "float32"  # of the parameters; `Rank.dtype` replaces it
    # Rules of configurations and logs, by name, that this version states, each with the place: a
    # document, a help text, its validation or its tests. Breaking any other rule is no mistake.
    rules: Mapping[str, str] = field(default_factory=dict)
    # Rules, by name, that this version contradicts, each with the place where it does.
    permits: Mapping[str, str] = field(default_factory=dict)
    # Modes in which its documents promise to train any ordinary step, each with the place: there a
    # refusal is wrong, elsewhere it is listed.
    promised: Mapping[Mode, str] = field(default_factory=dict)
    # Of the objectives with options whose defaults are documented, these options.
    defaults: Mapping[Objective, tuple[DefaultValue, ...]] = field(default_factory=dict)
    # Mistakes of the catalogue, by name, that are how this version counts on purpose, each with the
    # words for it: finding one is advice.
    deliberate: Mapping[str, Convention] = field(default_factory=dict)
    # Objectives that this version documents to have a mode of their own: that another one is
    # ignored is advice.
    fixed_modes: Mapping[Objective, FixedMode] = field(default_factory=dict)
    # Properties that no batch of its own has, each with the place that sees to it: that a step
    # crashes with such a batch is advice.
    never_made: Mapping[BatchProperty, str] = field(default_factory=dict)
    # Options of this version that its adapter does not know, and choices as ``name=choice``.
    new_options: tuple[str, ...] = ()
    # What a user types to choose each mode, objective and part of layouts that is not the default;
    # of a policy loss, besides PPO's bounds.
    chosen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # The name of each metric in the framework's own log.
    logged_as: Mapping[Metric, str] = field(default_factory=dict)
    # Packages that the framework imports, the loss never uses, and this run replaced by stubs.
    stubs: tuple[str, ...] = ()
    departures: tuple[Departure, ...] = ()  # all from a user's run, except the stubs

    @cached_property
    def conventions(self) -> Conventions:
        """The declared conventions, as the reference takes them."""
        return conventions_of(self.declared)


def code_location(function: Any) -> str:
    """The location of a function or class, unwrapped, as ``package/module.py:LINE (name)``."""
    original = inspect.unwrap(function)
    line = inspect.getsourcelines(original)[1]
    return f"{original.__module__.replace('.', '/')}.py:{line} ({original.__qualname__})"


@dataclass(frozen=True)
class Documented(Generic[Value]):
    """A convention that the framework states.

    ``where`` is a document with its section, a help text, a validation or a test of the framework.
    """

    value: Value
    where: str


def documented(where: str, values: Mapping[str, Any]) -> dict[str, Documented[Any]]:
    """Values by name that one place states."""
    return {name: Documented(value, where) for name, value in values.items()}


@dataclass(frozen=True)
class Assumed(Generic[Value]):
    """A convention that is read off the framework's code or its comments alone."""

    value: Value


Convention = Documented[Any] | Assumed[Any]


def conventions_of(declared: Mapping[str, Convention]) -> Conventions:
    """Returns the conventions without their sources, as the reference takes them."""
    return Conventions(**{name: convention.value for name, convention in declared.items()})


def sources(declared: Mapping[str, Convention]) -> dict[str, str]:
    """Returns where each documented convention is stated."""
    return {
        name: convention.where
        for name, convention in declared.items()
        if isinstance(convention, Documented)
    }


def answers(conventions: Conventions, documented: Mapping[str, str]) -> dict[str, str]:
    """Returns each convention in words, with the place that states it, or that it is assumed."""
    return {
        name: f"{value} ({documented.get(name, 'assumed')})"
        for name, value in vars(conventions).items()
        if value is not None
    }
