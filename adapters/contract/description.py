"""The description of a loaded framework: its features, its conventions, its departures.

`reference.aggregation.Conventions` has a field for each question that the modes leave open. An
adapter answers by field name, with the place where the framework states the answer; other fields
have the contract's default.
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
    STUBBED = "stubbed"  # code that is replaced by code of the adapter
    PASSED_BY = "passed_by"  # one of the framework's own checks or steps that is not executed
    NOT_RUN = "not_run"  # code that users run before the function that the adapter calls


@dataclass(frozen=True)
class Departure:
    """A difference from a user's run, and the reason why no verdict depends on the difference."""

    kind: DepartureKind
    what: str
    why: str


is_set, stubbed, passed_by, not_run = (partial(Departure, kind) for kind in DepartureKind)


class BatchProperty(StrEnum):
    """A property that no batch has if the framework's own code prevents it."""

    EMPTY_SAMPLE = "a sample without active tokens"


@dataclass(frozen=True)
class FixedMode:
    """The mode that an objective always has, whatever mode is set, and where this is documented."""

    mode: Mode
    place: str


@dataclass(frozen=True)
class DefaultValue:
    """The default of an option: the documented value and the value in a version's configuration."""

    option: str
    documented: Documented[Any]
    actual: object


@dataclass(frozen=True, kw_only=True)
class Statements:
    """Fields that the description of a version has from the framework's record."""

    largest_tp: int = 1  # the largest supported number of tensor-parallel ranks
    largest_pp: int = 1  # the largest supported number of pipeline stages
    missing_rewards: bool = False  # whether the framework's types allow a sample without a reward
    # Rules of configurations and logs, by name, that this version states, each with the place: a
    # document, a help text, its validation or its tests. Breaking a rule that is not listed is not
    # a mistake.
    rules: Mapping[str, str] = field(default_factory=dict)
    # Rules, by name, that this version contradicts, each with the place of the contradiction.
    permits: Mapping[str, str] = field(default_factory=dict)
    # Mistakes of the catalogue, by name, that this version makes on purpose, each with a
    # description. A finding of such a mistake is advice.
    deliberate: Mapping[str, Convention] = field(default_factory=dict)
    # Objectives with a fixed mode that this version documents. That such an objective ignores the
    # chosen mode is advice.
    fixed_modes: Mapping[Objective, FixedMode] = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()  # all differences from a user's run, except stubs


@dataclass(frozen=True, kw_only=True)
class Description(Statements):
    """The features of a loaded framework, as found by inspecting it.

    The fields up to `records_forward_passes`, and the largest numbers of ranks and stages, are its
    capabilities. Jobs beyond the capabilities are listed as unsupported and not run. A declared
    capability that fails counts as wrong.
    """

    modes: frozenset[Mode] = frozenset()
    depths: frozenset[Depth] = frozenset()
    objectives: frozenset[Objective] = frozenset()
    # The metrics that this version logs in jobs that have the metrics' terms.
    metrics: frozenset[Metric] = frozenset()
    options: frozenset[Option] = frozenset()  # supported options of layouts
    # The settings that `Job.configuration` may have, each with the framework's words for the
    # setting: an error that refuses a value must contain one of these words.
    configurations: Mapping[Setting | FaultInjection, tuple[str, ...]] = field(default_factory=dict)
    records_forward_passes: bool = False  # whether an observation has `forward_passes`

    default_mode: Mode = Mode.SAMPLE_MEAN  # the mode that is trained if a user chooses none
    # Answers to the questions that the modes leave open, by field of
    # `reference.aggregation.Conventions`.
    declared: Mapping[str, Convention] = field(default_factory=dict)
    dtype: str = "float32"  # dtype of the parameters; `Rank.dtype` overrides it
    # Modes in which the framework's documents promise to train any ordinary step, each with the
    # place. In these modes a refusal is wrong; in other modes it is only listed.
    promised: Mapping[Mode, str] = field(default_factory=dict)
    # The options with documented defaults, by objective.
    defaults: Mapping[Objective, tuple[DefaultValue, ...]] = field(default_factory=dict)
    # Properties that no batch made by this version has, each with the place that ensures it. A
    # crash on a batch with such a property is advice.
    never_made: Mapping[BatchProperty, str] = field(default_factory=dict)
    # Options of this version that the adapter does not know, and unknown choices as
    # ``name=choice``.
    new_options: tuple[str, ...] = ()
    # The options that choose each non-default mode, objective and part of a layout, as a user types
    # them. For a policy loss, the options of PPO's bounds are left out.
    chosen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # The name of each metric in the framework's own log.
    logged_as: Mapping[Metric, str] = field(default_factory=dict)
    # Packages that the framework imports but the loss never uses, replaced by stubs in this run.
    # Stubs of `toolkit.imports` are added when the framework is loaded.
    stubs: tuple[str, ...] = ()

    @cached_property
    def conventions(self) -> Conventions:
        """The declared conventions, in the type that the reference takes."""
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


@dataclass(frozen=True)
class Assumed(Generic[Value]):
    """A convention that is known only from the framework's code or its comments."""

    value: Value


Convention = Documented[Any] | Assumed[Any]


def conventions_of(declared: Mapping[str, Convention]) -> Conventions:
    """Returns the conventions without their sources, in the type that the reference takes."""
    return Conventions(**{name: convention.value for name, convention in declared.items()})
