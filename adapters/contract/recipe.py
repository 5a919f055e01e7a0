"""A user's recipe: the options of a training run, as the framework itself reads them.

An adapter that reads recipes names a function in ``recipes``. The function is called in a process
that has loaded the framework. It passes the user's text to the framework's own parser and
validation, and returns the resulting options by their names in the adapter's record.
"""

from __future__ import annotations

import importlib
import io
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adapters.contract.layout import Layout, Option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from adapters.contract.adapter import Adapter
    from adapters.contract.framework import Framework, Settings


UNEVEN_GROUPS = "where prompt groups differ in size"
UNEVEN_BATCH = "where a batch is no multiple of the data-parallel ranks"
MASKED_SAMPLE = "where all tokens of a sample are masked"
MASKED_END = "where a rewarded response ends with a masked token"
"""Facts of batches, in the words of findings, that options of a recipe may exclude."""


class RecipeRefused(Exception):  # noqa: N818 - a verdict of the framework, not an error
    """The framework refuses a recipe; the message quotes the framework."""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A recipe as its user wrote it: a file, the words after ``--``, or fields of an object."""

    file: Path | None = None
    words: tuple[str, ...] = ()
    fields: Mapping[str, Any] | None = None
    ranks: int | None = None
    """The ranks of the run; None if the recipe itself says how many."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe as the framework has read it, with options named as in the adapter's record."""

    engine: str
    values: Settings
    """Every option that the framework has read or has a default for."""

    defaults: Settings
    """The default of each option in ``values``."""

    layout: Layout
    """The layout of an optimizer step, at the recipe's full size."""

    samples: int
    """The number of samples of an optimizer step."""

    per_prompt: int
    """The number of samples of a prompt."""

    steps: int = 1
    """The number of optimizer steps of a batch of rollouts."""

    generations: int = 1
    """The number of generations whose micro-batches make up an optimizer step."""

    longest: int | None = None
    """The maximum number of tokens of a response."""

    ours: frozenset[str] = frozenset()
    """Options that an adapter sets only to make something observable, which do not choose a loss.
    """

    sizes: frozenset[str] = frozenset()
    """Options that determine layout, samples and steps."""

    unlike: frozenset[str] = frozenset()
    """Facts that no batch of the recipe has, such as `UNEVEN_GROUPS`."""

    unread: frozenset[str] = frozenset()
    """Options that are known only to a package which is not installed."""

    @classmethod
    def cut(
        cls,
        grid: Layout,
        *,
        samples: int,
        rows: int | None,
        is_packed: bool,
        options: tuple[Option, ...] = (),
        **others: Any,
    ) -> Recipe:
        """A recipe whose optimizer step of ``samples`` is cut on a grid of ranks.

        A micro-batch has ``rows`` samples; ``rows`` is None if a token budget cuts micro-batches.
        """
        layout = replace(
            grid,
            micro_batches="tokens" if rows is None else max(samples // grid.dp // rows, 1),
            format="thd" if is_packed else "bshd",
            options=options,
        )
        return cls(layout=layout, samples=samples, **others)

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that differ from the framework's defaults."""
        return {
            name: value
            for name, value in self.values.items()
            if name not in self.defaults or value != self.defaults[name]
        }


@contextmanager
def refusals_of_recipes() -> Iterator[None]:
    """Turns a framework's exceptions, including `SystemExit`, into `RecipeRefused`.

    If a parser prints its complaint and exits, the message is the last line that it printed.
    """
    printed = io.StringIO()
    try:
        with redirect_stderr(printed), redirect_stdout(sys.stderr):
            yield
    except RecipeRefused:
        raise
    except (Exception, SystemExit) as error:
        words = str(error) if not isinstance(error, SystemExit) else printed.getvalue()
        lines = [line.strip() for line in words.splitlines() if line.strip()] or [repr(error)]
        said = lines[-1] if isinstance(error, SystemExit) else " ".join(lines)
        kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
        raise RecipeRefused(f"{kind}{said}") from error


def require_words(typed: Typed, title: str) -> None:
    """Require a recipe to be words of a command line.

    Raises:
        RecipeRefused: the recipe is a file.
    """
    if typed.file is not None:
        raise RecipeRefused(f"{title} reads no file: type its options after --")


def nested_yaml(file: Path | None) -> Any:
    """The options of a YAML file, for frameworks that take them as words; empty without a file.

    Raises:
        RecipeRefused: the file is not YAML, or has no options.
    """
    import yaml

    if file is None:
        return {}
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeRefused(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise RecipeRefused(f"{file} has no options by name")
    return found


def flat(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of nested sections, with dots in their names."""
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def sizes_in(values: Settings, *names: str) -> tuple[int, ...]:
    """The integer values of options; 1 for an option that is missing, empty or 0."""
    return tuple(int(values.get(name) or 1) for name in names)


def grid_of(ranks: int, cp: int = 1, tp: int = 1, pp: int = 1) -> Layout:
    """The layout of a run's ranks; ``dp`` is the number of ranks over cp · tp · pp, at least 1."""
    return Layout(dp=max(ranks // (cp * tp * pp), 1), cp=cp, tp=tp, pp=pp)


def extend_defaults(
    defaults: Settings, values: Settings, by_user: Collection[str]
) -> dict[str, Any]:
    """The defaults, replaced by the values of all options that are not named in ``by_user``.

    Values that follow from other options thus do not count as set by a user.
    """
    following = {name: one for name, one in values.items() if name not in by_user}
    return {**defaults, **following}


def record_of(adapter: Adapter, engine: str) -> Framework:
    """The record of one of the engines of an adapter's package."""
    package = importlib.import_module(type(adapter).__module__.rpartition(".")[0])
    records: Mapping[str, Framework] = {one.engine: one.framework for one in package.ENGINES}
    return records[engine]


def options_of(record: Framework, values: Settings, defaults: Settings) -> tuple[Option, ...]:
    """The layout options whose settings a recipe has."""
    found = []
    for part, chosen in record.layout.items():
        constant = {name: one for name, one in chosen.items() if not callable(one)}
        is_chosen = all(values.get(name) == one for name, one in constant.items())
        is_default = all(defaults.get(name) == one for name, one in constant.items())
        if part in [*Option] and constant and is_chosen and not is_default:
            found.append(Option(part))
    return tuple(found)
