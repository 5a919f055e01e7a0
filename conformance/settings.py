"""What a run was asked for, checked before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.contract import Depth, InvalidLayoutError, Job, Layout
from adapters.source import Source, SourceError, resolve
from conformance import registry
from conformance.cases import CORPUS, Case
from reference.aggregation import Aggregation, InvalidAggregationError, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adapters.contract import Adapter


class InvalidSettingsError(ValueError):
    """A setting without meaning."""


SETTINGS_ERRORS = (
    registry.AdapterError,
    registry.InvalidEngineError,
    SourceError,
    InvalidAggregationError,
    InvalidLayoutError,
    InvalidSettingsError,
)
"""What `Settings.of` raises: each names the value, the rule and the way out."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place in the table of findings: a check on one mode, case and layout."""

    aggregation: Aggregation
    case: Case
    layout: Layout
    depth: Depth
    check: str = "weights"

    @property
    def id(self) -> str:
        """Unique, and stable over releases."""
        return f"{self.check}/{self.aggregation.mode}/{self.case.name}/{self.layout}"

    @property
    def job(self) -> Job:
        """What the ranks are given: everything but what to expect."""
        return Job(
            steps=self.case.steps,
            aggregation=self.aggregation,
            layout=self.layout,
            depth=self.depth,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run's adapter, source, selection and limits."""

    adapter: Adapter
    source: Source
    aggregations: dict[Mode, Aggregation | None]
    """Modes to run, with a divisor that replaces the cases' own."""

    depth: Depth
    layouts: tuple[Layout, ...]
    time_limit: float
    report: Path

    @classmethod
    def of(
        cls,
        *,
        adapter: str,
        source: str | None,
        engine: str | None,
        modes: str | None,
        depth: str,
        layouts: Sequence[str],
        max_ranks: int,
        time_limit: float,
        report: Path,
    ) -> Settings:
        """Check what a user typed.

        Raises:
            ValueError: one of SETTINGS_ERRORS.
        """
        if max_ranks < 1:
            raise InvalidSettingsError(f"--max-ranks is {max_ranks}; at least one rank is needed")
        if time_limit <= 0:
            raise InvalidSettingsError(f"--time-limit is {time_limit:g} s; give more than 0")
        chosen = registry.create(adapter, engine)
        return cls(
            adapter=chosen,
            source=resolve(chosen, source),
            aggregations=_modes(modes),
            depth=_depth(depth),
            layouts=_layouts(chosen, layouts, max_ranks),
            time_limit=time_limit,
            report=report,
        )

    @property
    def ranks(self) -> int:
        """The most ranks that a layout takes."""
        return max(layout.world_size for layout in self.layouts)

    def cells(self) -> list[Cell]:
        """Every finding to be made, those on one layout together."""
        return [
            Cell(
                aggregation=aggregation or case.aggregation(mode),
                case=case,
                layout=layout,
                depth=self.depth,
            )
            for layout in self.layouts
            for case in CORPUS
            if case.runs_on(layout)
            for mode, aggregation in self.aggregations.items()
        ]


def _modes(text: str | None) -> dict[Mode, Aggregation | None]:
    if text is None:
        return dict.fromkeys(Mode)
    modes: dict[Mode, Aggregation | None] = {}
    for item in text.split(","):
        if item == Mode.CONSTANT:
            modes[Mode.CONSTANT] = None
        else:
            aggregation = Aggregation.parse(item)
            modes[aggregation.mode] = aggregation
    return modes


def _depth(text: str) -> Depth:
    try:
        return Depth(text)
    except ValueError:
        raise InvalidSettingsError(
            f"depth {text!r} is unknown; choose {' or '.join(Depth)}"
        ) from None


def _layouts(adapter: Adapter, texts: Sequence[str], max_ranks: int) -> tuple[Layout, ...]:
    if not texts:
        fitting = tuple(one for one in adapter.layouts() if one.world_size <= max_ranks)
        if not fitting:
            fewest = min(layout.world_size for layout in adapter.layouts())
            raise InvalidLayoutError(
                f"no layout of {adapter.name} fits --max-ranks={max_ranks}; give at least {fewest}"
            )
        return fitting
    layouts = tuple(dict.fromkeys(Layout.parse(text) for text in texts))
    for layout in layouts:
        if layout.world_size > max_ranks:
            raise InvalidLayoutError(
                f"layout {layout} takes {layout.world_size} ranks and --max-ranks is {max_ranks};"
                f" raise --max-ranks to {layout.world_size} or choose a smaller layout"
            )
    return tuple(sorted(layouts, key=lambda layout: layout.world_size))
