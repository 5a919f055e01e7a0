"""A framework's record as data, in a file `tables.toml` beside the functions that it names.

`docs/adapters.md` describes its tables. The tables of options and departures may be read
separately.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from adapters.contract import objective
from adapters.contract.description import (
    Assumed,
    Convention,
    Departure,
    DepartureKind,
    Documented,
    FixedMode,
)
from adapters.contract.framework import Configurable, Framework, OptionRow, Settings
from adapters.contract.job import FaultInjection, Setting
from adapters.contract.layout import expanded
from adapters.contract.objective import Metric, Objective
from adapters.contract.recipe import flat
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_CONSTANTS: dict[str, Any] = {
    **asdict(objective.CONSTANTS),
    **asdict(objective.ADVANTAGE_CONSTANTS),
    "entropy_coefficient": objective.ENTROPY_COEFFICIENT,
    "kl_coefficient": objective.KL_COEFFICIENT,
    "router_coefficient": objective.ROUTER_COEFFICIENT,
    "z_coefficient": objective.Z_COEFFICIENT,
    "none": None,
    "steps": lambda job: len(job.steps),
    "samples": lambda job: sum(step.size for step in job.steps),
}
"""Values that the files of all frameworks may refer to with a ``$``."""

Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Text without its line breaks."""

Rows = list[dict[str, Line]]
Text = str | list[Any] | dict[str, Any]
"""Settings in a file: a table, the name of shared or given settings, or a list of tables and names.
"""


class _Configurable(BaseModel, extra="forbid"):
    words: list[str] = Field(default_factory=list)
    settings: Text = Field(default_factory=dict)


class _Choices(BaseModel, extra="forbid"):
    """The fields of a record, or only the fields in which a variant differs."""

    title: str = ""
    scope: str = ""
    missing_rewards: bool = False
    modes: dict[str, tuple[str, Text]] = Field(default_factory=dict)
    objectives: dict[Objective, Text] = Field(default_factory=dict)
    only_modes: dict[Objective, Mode] = Field(default_factory=dict)
    layout: dict[str, Text] = Field(default_factory=dict)
    always: Text = Field(default_factory=dict)
    configurations: dict[Setting | FaultInjection, _Configurable] = Field(default_factory=dict)
    metrics: dict[Metric, str] = Field(default_factory=dict)
    conventions: dict[str, Any] = Field(default_factory=dict)
    rules: dict[str, str] = Field(default_factory=dict)
    permits: dict[str, str] = Field(default_factory=dict)
    deliberate: dict[str, Any] = Field(default_factory=dict)
    fixed_modes: dict[Objective, FixedMode] = Field(default_factory=dict)
    defaults: list[dict[str, Any]] = Field(default_factory=list)
    options: Rows = Field(default_factory=list)
    departures: Rows = Field(default_factory=list)
    driven: list[str] = Field(default_factory=list)
    largest_tp: int = 0
    largest_pp: int = 0


class Imports(BaseModel, extra="forbid"):
    """Packages and modules that a framework imports.

    ``required`` packages must be installed. No step that adapters drive enters the other packages:
    ``missing`` packages are stubbed unless they are installed, ``stubbed`` packages always.
    """

    required: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    stubbed: list[str] = Field(default_factory=list)


class _Tables(_Choices):
    """The tables of a file. Tables with other names are rows of options or departures."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Rows]

    imports: Imports = Field(default_factory=Imports)
    shared: dict[str, Text] = Field(default_factory=dict)
    variants: dict[str, _Choices] = Field(default_factory=dict)


class RecordFile:
    """The records in a package's file, with the values that the file refers to with a ``$``.

    The file may refer to functions of a job in modules, and to values by name. Positional arguments
    are modules or, for the caller's own module, ``globals()``. If several values have the same
    name, the last one counts.
    """

    def __init__(
        self, package: str, *modules: ModuleType | Mapping[str, Any], **values: Any
    ) -> None:
        self._tables, named = _tables(package), dict[str, Any]()
        for one in modules:
            named |= vars(one) if isinstance(one, ModuleType) else one
        self._reader = _Reader(self._tables.shared, named | values)

    def record(self, *departures: Departure) -> Framework:
        """The record of the whole file; shared ``departures`` follow the record's own."""
        return _extended(_NOTHING, self._tables, self._reader, departures)

    def variant(
        self, name: str, *departures: Departure, base: Framework | None = None
    ) -> Framework:
        """The record of an engine or a version: the file's additions to ``base``, if given."""
        own = self._tables.variants[name]
        return _extended(base or _NOTHING, own, self._reader, departures)


def read_options(package: str, table: str = "options") -> tuple[OptionRow, ...]:
    """The rows of a package's options table: ``names``, their effect, and a ``note``."""
    return _options(read_rows(package, table))


def read_departures(package: str, table: str = "departures") -> tuple[Departure, ...]:
    """The departures of a package's table: the kind, the difference, and ``why`` it is safe."""
    return _departures(read_rows(package, table))


def read_rows(package: str, table: str) -> Rows:
    """The rows of one of a package's tables, such as ``options``."""
    tables = _tables(package)
    return {"options": tables.options, "departures": tables.departures}.get(table) or (
        tables.__pydantic_extra__[table]
    )


_NOTHING = Framework(title="", modes={}, objectives={})


def read_imports(package: str) -> Imports:
    """The packages of a package's table `imports`."""
    return _tables(package).imports


def _extended(
    base: Framework, own: _Choices, reader: _Reader, departures: Iterable[Departure]
) -> Framework:
    """A record with a file's additions: new entries replace old entries, new rows are appended."""
    added: dict[str, Any] = {
        "modes": {name: (mode, reader.settings(text)) for name, (mode, text) in own.modes.items()},
        "objectives": reader.all_settings(own.objectives),
        "only_modes": own.only_modes,
        "layout": reader.all_settings(own.layout),
        "always": reader.settings(own.always),
        "configurations": {
            what: Configurable(reader.settings(one.settings), tuple(one.words))
            for what, one in own.configurations.items()
        },
        "metrics": own.metrics,
        "conventions": {name: _convention(name, one) for name, one in own.conventions.items()},
        "rules": _places(own.rules),
        "permits": _places(own.permits),
        "deliberate": {name: _stated(one) for name, one in own.deliberate.items()},
        "fixed_modes": own.fixed_modes,
        "defaults": _defaults(own.defaults),
        "options": _options(own.options),
        "departures": (*_departures(own.departures), *departures),
    }
    joined: dict[str, Any] = {
        name: (*before, *more) if isinstance(more, tuple) else {**before, **more}
        for name, more in added.items()
        for before in [getattr(base, name)]
    }
    driven = tuple(one for each in own.driven for one in expanded(each))
    replaced: dict[str, Any] = {
        name: getattr(own, name) or getattr(base, name) for name in _REPLACED
    }
    return replace(base, **joined, **replaced, driven=driven or base.driven)


_REPLACED = ("title", "scope", "missing_rewards", "largest_tp", "largest_pp")
"""Fields in which a variant's value, if any, replaces the value of its base."""


@dataclass(frozen=True)
class _Reader:
    """Reads settings that refer to shared settings, constants and values of a module."""

    shared: Mapping[str, Text]
    values: dict[str, Any]

    def all_settings(self, texts: Mapping[Any, Text]) -> dict[Any, Settings]:
        """The settings of each objective, or of each part of a layout."""
        return {name: self.settings(text) for name, text in texts.items()}

    def settings(self, text: Text) -> dict[str, Any]:
        """Options by dotted names; if several settings have the same option, the last one wins."""
        if isinstance(text, str):
            given = text.startswith("$")
            return dict(self._value(text)) if given else self.settings(self.shared[text])
        if isinstance(text, list):
            return {name: one for part in text for name, one in self.settings(part).items()}
        return {name: self._value(one) for name, one in flat(text)}

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(one) for one in value]
        if isinstance(value, dict):
            return {name: self._value(one) for name, one in value.items()}
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        name, _, attribute = value[1:].partition(".")
        known = {**_CONSTANTS, **self.values, "job": _itself}
        if name not in known:
            raise LookupError(f"{value} is neither a constant nor a value that the record is given")
        return _attribute(known[name], attribute) if attribute else known[name]


def _itself(job: Any) -> Any:
    return job


@cache
def _attribute(of: Callable[[Any], Any], attribute: str) -> Callable[[Any], Any]:
    """A function that returns an attribute of ``of(job)``; equal arguments give one function."""
    get = attrgetter(attribute)
    return lambda job: get(of(job))


_TYPES = get_type_hints(Conventions)


def _convention(name: str, text: Any) -> Convention:
    """A field of `reference.aggregation.Conventions`."""
    stated = _stated(text)
    return replace(stated, value=TypeAdapter(_TYPES[name]).validate_python(stated.value))


def _stated(text: Any) -> Convention:
    """An assumed value, or a value in a table that says ``where`` it is documented."""
    if isinstance(text, dict) and "where" in text:
        return Documented(**text)
    return Assumed(text)


def _places(places: Mapping[str, str]) -> dict[str, str]:
    """The place of each rule; one key may name several rules, separated by commas."""
    return {name: where for names, where in places.items() for name in names.split(", ")}


def _defaults(tables: Iterable[Mapping[str, Any]]) -> dict[str, Documented[Any]]:
    """The documented defaults in tables, each with the place, ``where``, of its table."""
    return {
        name: Documented(value, table["where"])
        for table in tables
        for name, value in flat(table)
        if name != "where"
    }


def _options(rows: Rows) -> tuple[OptionRow, ...]:
    lines = (dict(row) for row in rows)
    return tuple(OptionRow(tuple(row.pop("names").split(", ")), **row) for row in lines)


def _departures(rows: Rows) -> tuple[Departure, ...]:
    return tuple(
        Departure(DepartureKind(kind), row[kind], row["why"])
        for row in rows
        for kind in row.keys() - {"why"}
    )


@cache
def _tables(package: str) -> _Tables:
    text = files(package).joinpath("tables.toml").read_text("utf-8")
    return _Tables.model_validate(tomllib.loads(text))
