"""An adapter's knowledge of a framework, as data, with options named as users type them.

A `Framework` determines the capabilities of a loaded version, the configuration of a job, the
metrics in logs, the framework's names of the modes, and its section of docs/options.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from adapters.contract.description import DefaultValue, Description, Statements
from adapters.contract.job import Defaults, Depth, Job, Unsupported
from adapters.contract.layout import Layout, Option
from adapters.contract.objective import OF_ROLLOUTS, OFF_POLICY, Metric, Objective
from adapters.contract.recorded import LOGGED
from reference.aggregation import Mode

if TYPE_CHECKING:
    from adapters.contract.description import Convention, Documented
    from adapters.contract.job import FaultInjection, Setting
    from reference.aggregation import Aggregation

Settings = Mapping[str, Any]
"""Values of options by name; a value that depends on the job is a function of the job."""


class Substitute(str):
    """A value that replaces one that a user chooses, such as a file or the name of a function."""

    __slots__ = ()


@dataclass(frozen=True)
class OptionRow:
    """Related options: a row of docs/options.md.

    ``note`` says with which values the options are run or not run. If no mode, objective or layout
    sets any of the options, the note begins with the checks that still cover them, or says why no
    check does.
    """

    names: tuple[str, ...]
    changes: str
    note: str = ""


@dataclass(frozen=True)
class Configurable:
    """The options by which a user makes a setting of `Job.configuration`.

    An error that refuses the setting must contain one of ``words``.
    """

    settings: Settings
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Framework(Statements):
    """A framework, or one of its engines.

    ``modes`` maps the framework's own name of a mode to two values: the mode as `Aggregation.parse`
    reads it (``constant`` alone if users give its divisor), and the settings that choose the mode.
    The first entry is the default. If a mode has several names, jobs choose the first name with
    their divisor, or else the first name. ``layout`` maps parts of a layout's name to settings. A
    part is ``mb`` for a number of micro-batches, ``accumulated`` for more than one micro-batch
    where users have only one by default, ``mbtokens``, ``thd``, ``mb-thd``, an option, and so on; a
    key may have several parts, separated by spaces.
    Jobs of every kind use the settings of ``always``; the settings of ``configurations`` come last,
    and an empty text leaves an option out. ``metrics`` has the name of each metric in logs: with
    the prefix ``-``, the log has the negated metric, with ``1 -`` its complement. With ``1/2``,
    half of the logged number is taken.
    """

    title: str
    """The framework's spelling of its name; records with the same title share a section of options.
    """
    scope: str = ""
    """A sentence that says which of the framework's options ``options`` covers."""
    modes: Mapping[str, tuple[str, Settings]]
    objectives: Mapping[Objective, Settings]
    only_modes: Mapping[Objective, Mode] = field(default_factory=dict)
    """The mode of each objective that the framework documents for a single mode only."""
    layout: Mapping[str, Settings] = field(default_factory=dict)
    always: Settings = field(default_factory=dict)
    configurations: Mapping[Setting | FaultInjection, Configurable] = field(default_factory=dict)
    metrics: Mapping[Metric, str] = field(default_factory=dict)
    conventions: Mapping[str, Convention] = field(default_factory=dict)
    defaults: Mapping[str, Documented[Any]] = field(default_factory=dict)
    """The documented default value of each option."""
    options: tuple[OptionRow, ...] = ()
    driven: tuple[Layout, ...] = ()
    """The layouts that are run, grouped by number of ranks."""

    @property
    def mode_names(self) -> dict[str, str]:
        """The framework's own names of modes, each with its mode, as in `Adapter.mode_names`."""
        return {name: mode for name, (mode, _) in self.modes.items()}

    def description(
        self,
        offers: Callable[[Settings], bool],
        names: Iterable[str],
        default: Callable[[str], object] = lambda _: None,
        **loaded: Any,
    ) -> Description:
        """Describe a loaded version.

        ``offers`` says whether the version's configuration has these options and values. ``names``
        are the names of all options that the loss depends on, and their choices as ``name=choice``.
        ``default`` returns an option's default value. ``loaded`` has the fields of the description
        that are found in the loaded code, such as ``places``.
        """
        objectives = {one for one, chosen in self.objectives.items() if offers(_constant(chosen))}
        modes = [mode for mode, chosen in self.modes.values() if offers(_constant(chosen))]
        metrics = {*self.metrics}
        if Objective.REJECTION not in objectives:
            metrics.discard(Metric.REJECTED)
        of_record: dict[str, Any] = {
            **{one.name: getattr(self, one.name) for one in fields(Statements)},
            "modes": frozenset(map(_kind, modes)),
            "default_mode": _kind(next(iter(self.mode_names.values()))),
            "depths": frozenset({Depth.STEP}),
            "objectives": frozenset(objectives),
            "metrics": frozenset(metrics),
            "configurations": {what: one.words for what, one in self.configurations.items()},
            "options": frozenset(Option(part) for part in self.layout if part in [*Option]),
            "records_forward_passes": True,
            "new_options": tuple(sorted(name for name in {*names} if not self._knows(name))),
            "chosen_by": self._chosen_by(default),
            "logged_as": {metric: _signed(name)[-1] for metric, name in self.metrics.items()},
            "declared": self.conventions,
            "defaults": {
                objective: tuple(
                    DefaultValue(name, self.defaults[name], default(name)) for name in names
                )
                for objective, names in self.with_defaults.items()
            },
        }
        return Description(**of_record | loaded)

    @property
    def with_defaults(self) -> dict[Objective, list[str]]:
        """The options with documented defaults, each under the first objective that sets it."""
        left, found = {*self.defaults}, {}
        for objective, chosen in self.objectives.items():
            if names := [name for name in chosen if name in left]:
                found[objective] = names
                left -= {*names}
        return found

    def narrowed(self, has: Callable[[Settings], bool]) -> Framework:
        """Returns a version's record, without choices that need an option which the version lacks.

        ``has`` says whether the version has these options and values; a value may be a function of
        the job.
        """
        kept = {name: one for name, one in self.configurations.items() if has(one.settings)}
        of_layout = self.layout.items()
        return replace(
            self,
            modes={name: one for name, one in self.modes.items() if has(one[1])},
            objectives={name: chosen for name, chosen in self.objectives.items() if has(chosen)},
            layout={part: one for part, one in of_layout if part not in [*Option] or has(one)},
            configurations=kept,
        )

    def _knows(self, name: str) -> bool:
        """Whether jobs set an option or choice, or a row of the options table mentions it."""
        option, _, choice = name.partition("=")
        rows = [row for row in self.options if option in row.names]
        if not choice:
            return bool(rows) or option in self.always
        said = {
            word for row in rows for word in re.findall(r"[\w.-]+", f"{row.changes} {row.note}")
        }
        return choice in said or any(choice == str(one.get(option)) for one in self._all_settings)

    @property
    def _all_settings(self) -> list[Settings]:
        of_modes = [chosen for _, chosen in self.modes.values()]
        of_configurations = [one.settings for one in self.configurations.values()]
        others = [*self.objectives.values(), *self.layout.values(), *of_configurations]
        return [self.always, *of_modes, *others]

    def _chosen_by(self, default: Callable[[str], object]) -> dict[str, tuple[str, ...]]:
        """The options that choose each mode, objective and part of layouts, as a user types them.

        Options with default values are left out. For other losses with ratios, so are the options
        that PPO's loss already sets.
        """

        def usual(name: str) -> object:
            return self.defaults[name].value if name in self.defaults else default(name)

        clipped = self.objectives.get(Objective.OFF_POLICY, {})
        chosen: dict[str, Settings] = {
            **{_kind(mode): one for mode, one in reversed([*self.modes.values()])},
            **{
                objective: _difference(one, clipped if objective in OFF_POLICY[1:] else {})
                for objective, one in self.objectives.items()
            },
            **{part: one for parts, one in self.layout.items() for part in parts.split()},
        }
        typed = {name: _typed(one, usual) for name, one in chosen.items()}
        return {name: text for name, text in typed.items() if text}

    def settings(self, job: Job) -> dict[str, Any]:
        """The options that train the job; an objective that is not in the record adds none.

        Raises `Unsupported` for a mode that the framework lacks, in general or for the job's loss,
        and for a division into micro-batches that no part of ``layout`` describes.
        """
        merged = dict(self.always)
        of_rejection = self.objectives.get(Objective.REJECTION, {}) if job.rejects else {}
        configured = job.configuration.settings
        for chosen in (
            self._mode_settings(job),
            *self._layout_settings(job.layout),
            of_rejection,
            self.objectives.get(job.objective, {}),
            *(one.settings for what, one in self.configurations.items() if what in configured),
            self._default_settings(job),
        ):
            merged |= chosen
        values = {name: one(job) if callable(one) else one for name, one in merged.items()}
        return {name: value for name, value in values.items() if value != ""}

    def _mode_settings(self, job: Job) -> Settings:
        mode, exact = job.aggregation.mode, _text(job.aggregation)
        fitting = [one for one in self.modes.values() if one[0] in (mode, exact)]
        if not fitting:
            raise Unsupported(f"no {exact}")
        if self.only_modes.get(job.objective, mode) is not mode:
            raise Unsupported(f"{job.objective} is documented to have no {mode}")
        return dict(reversed(fitting)).get(exact, fitting[0][1])

    def _layout_settings(self, layout: Layout) -> list[Settings]:
        by_parts = [({*words.split()}, chosen) for words, chosen in self.layout.items()]
        cut = layout.micro_batches
        cuts = {part.partition("-")[0] for parts, _ in by_parts for part in parts}
        if isinstance(cut, str) and f"mb{cut}" not in cuts:
            raise Unsupported(f"no micro-batches by {cut}")
        return [chosen for parts, chosen in by_parts if parts & parts_of(layout)]

    def _default_settings(self, job: Job) -> Settings:
        if job.defaults is None:
            return {}
        is_typed = job.defaults is Defaults.TYPED
        names = self.with_defaults[job.objective]
        return {name: self.defaults[name].value if is_typed else "" for name in names}

    def reported(
        self, logs: Sequence[Mapping[str, Any]], rollouts: Mapping[str, Any] | None = None
    ) -> dict[Metric, tuple[float | None, ...]]:
        """The metrics found in the logs of steps; all numbers of the logs are noted in `LOGGED`.

        If there is a log of a batch's ``rollouts``, metrics of rollouts are read from this log.
        """
        if rollouts is not None:
            found, of_batch = self.reported(logs), self.reported([rollouts])
            return found | {metric: of for metric, of in of_batch.items() if metric in OF_ROLLOUTS}
        LOGGED.note(logs)
        found = {}
        for metric, signed in self.metrics.items():
            of_one, minus, half, name = _signed(signed)
            if any(name in log for log in logs):
                size, constant = 0.5 if half else 1.0, 1.0 if of_one else 0.0
                sign = -size if minus else size
                found[metric] = tuple(
                    None if log.get(name) is None else constant + sign * float(log[name])
                    for log in logs
                )
        return found


def parts_of(layout: Layout) -> set[str]:
    """The parts of a layout's name, which are the keys of `Framework.layout`."""
    cut = "mb" if isinstance(layout.micro_batches, int) else f"mb{layout.micro_batches}"
    several = () if layout.micro_batches == 1 else ("accumulated",)
    stored = layout.format
    return {"dp", "cp", "tp", "pp", cut, *several, stored, f"{cut}-{stored}", *layout.options}


def nested(settings: Settings) -> dict[str, Any]:
    """Settings as dictionaries within dictionaries: the dots of their names separate sections."""
    whole: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, last = name.split(".")
        inner = whole
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return whole


_SIGNED = re.compile(r"(1 (?=-))?(- ?)?(1/2 )?(.+)")
"""Matches an entry of `Framework.metrics`: prefixes, then the metric's name in logs."""


def _signed(name: str) -> tuple[str, str, str, str]:
    """The prefixes of an entry of `Framework.metrics`, followed by the name in logs."""
    return _SIGNED.fullmatch(name).groups()  # type: ignore[union-attr,return-value]


def _text(aggregation: Aggregation) -> str:
    """The text of an aggregation, as `Aggregation.parse` reads it."""
    mode, divisor = aggregation.mode, aggregation.divisor
    return mode if divisor is None else f"{mode}:{divisor:g}"


def _difference(settings: Settings, base: Settings) -> Settings:
    """The settings that ``base`` lacks, or has with another value."""
    return {name: one for name, one in settings.items() if name not in base or base[name] != one}


def _typed(settings: Settings, default: Callable[[str], object]) -> tuple[str, ...]:
    """Settings as users type them, without default values.

    If a value depends on the job, is a `Substitute` or has several parts, only the option's name is
    given. A number whose default is 0 or None switches a feature on. Any other number only tunes a
    feature that another option switches on, and is left out unless nothing else is left.
    """
    changed = {name: one for name, one in settings.items() if one != default(name)}
    # Names with ``+`` are not the framework's options, so they are never off.
    is_on = {name: name.startswith("+") or bool(default(name)) for name in changed}
    tuned = [name for name, one in changed.items() if _is_number(one) and is_on[name]]
    plain = {name: one for name, one in changed.items() if name not in tuned} or changed
    return tuple(f"{name}={one}" if _is_shown(one) else name for name, one in plain.items())


def _is_shown(value: object) -> bool:
    is_text = isinstance(value, str) and not isinstance(value, Substitute)
    return value is False or is_text or _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(mode: str) -> Mode:
    """The mode of a text for `Aggregation.parse`, whether or not the text has a divisor."""
    return Mode(mode.partition(":")[0])


def _constant(settings: Settings) -> Settings:
    """The settings that do not depend on a job."""
    return {name: value for name, value in settings.items() if not callable(value)}
