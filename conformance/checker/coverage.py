"""Chooses a few matrix cells that together show every capability that an adapter declares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import Depth, Layout, Option
from adapters.contract.job import FaultInjection, Setting
from adapters.contract.objective import Metric, Objective
from conformance.corpus.configurations import CONFIG_CASES
from conformance.plan.matrix import MatrixCell, StartupCell, may_decline
from conformance.plan.plan import Plan
from conformance.plan.quick import pairwise
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Description

FEW_RANKS = 2
"""The largest number of ranks of the layouts that are run, unless all of the adapter's have more.
"""

CAPABILITIES = {
    "modes": ("mode", [*Mode]),
    "depths": ("depth", [Depth.STEP, Depth.LOSS, Depth.REDUCER]),
    "objectives": ("objective", [*Objective]),
    "metrics": ("metric", [*Metric]),
    "options": ("option", [*Option]),
    "configurations": ("configuration", [*Setting, *FaultInjection]),
}
"""For each field of a description, the word for one of its members, and all possible members."""


def small_layouts(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts with all pairs of properties on few ranks, the plainest first.

    The smallest layout with each option is added, and one on which configurations can be tried.
    """
    by_size = sorted(layouts, key=lambda one: (one.world_size, one.options, one.micro_batches != 1))
    few = max(FEW_RANKS, by_size[0].world_size)
    some = pairwise(layout for layout in layouts if layout.world_size <= few)
    chosen = [*dict.fromkeys([by_size[0], *configurable(layouts)[:1], *some])]
    for layout in by_size:
        shown = {option for one in chosen for option in one.options}
        is_larger = any(
            getattr(layout, size) > max(getattr(one, size) for one in chosen)
            for size in ("tp", "pp")
        )
        if is_larger or not shown.issuperset(layout.options):
            chosen.append(layout)
    return chosen


def configurable(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts on which configurations can be tried."""
    return [layout for layout in layouts if CONFIG_CASES[0].fits(layout)]


def is_declared(layout: Layout, description: Description) -> bool:
    """Whether all capabilities that a layout needs are declared."""
    fits = layout.tp <= description.largest_tp and layout.pp <= description.largest_pp
    return fits and {*layout.options} <= description.options


def depths(description: Description) -> list[Depth]:
    """The declared depths, the deepest first."""
    return [depth for depth in CAPABILITIES["depths"][1] if depth in description.depths]


def declared(description: Description) -> set[str]:
    """Every declared capability, in words."""
    return {
        f"{word} {one}"
        for field, (word, _) in CAPABILITIES.items()
        for one in getattr(description, field)
    }


def not_declared(description: Description) -> list[str]:
    """The capabilities that are not declared, a line for each kind."""
    lacking = {
        field: ", ".join(one for one in known if one not in getattr(description, field))
        for field, (_, known) in CAPABILITIES.items()
    }
    passes = [] if description.records_forward_passes else ["records_forward_passes"]
    return [f"{field}: {names}" for field, names in lacking.items() if names] + passes


def chosen_cells(
    description: Description, layouts: Sequence[Layout]
) -> tuple[list[MatrixCell], list[str]]:
    """Cells that show each declared capability and layout once, and capabilities without a cell."""
    left = declared(description) | {str(layout) for layout in layouts}
    allowed = frozenset(left)
    chosen = []
    for cell in sorted(_cells(description, layouts), key=may_decline):
        shown = _shown(cell)
        if shown <= allowed and shown & left:
            chosen.append(cell)
            left -= shown
    return chosen, sorted(left)


def _cells(description: Description, layouts: Sequence[Layout]) -> Iterator[MatrixCell]:
    """All cells of declared modes: on all layouts at the greatest depth, on one at other depths."""
    modes = [mode for mode in Mode if mode in description.modes]
    for number, depth in enumerate(depths(description)):
        plan = Plan(
            aggregations=dict.fromkeys(modes),
            depth=depth,
            layouts=tuple(layouts[:1] if number else layouts),
            mode_of_advantages=modes[0],
        )
        cells = (cell for cell in plan.cells() if isinstance(cell, MatrixCell))
        yield from (cell for cell in cells if _tells(cell, description))


def other_modes(cell: MatrixCell, description: Description) -> list[MatrixCell]:
    """The cell in all other declared modes of its check; empty for the plain policy loss."""
    if cell.spec.objective is Objective.POLICY:
        return []
    others = {*cell.spec.modes} & description.modes - {cell.aggregation.mode}
    return [replace(cell, aggregation=cell.case.aggregation(mode)) for mode in sorted(others)]


def _tells(cell: MatrixCell, description: Description) -> bool:
    """Whether a cell tests what the adapter declares, rather than a convention."""
    if isinstance(cell, StartupCell):
        case = cell.config_case
        return case.applies(description.conventions) and case.rule not in description.permits
    return cell.spec.law is None or cell.spec.law.attached is not None


def _shown(cell: MatrixCell) -> set[str]:
    """The capabilities that a cell needs, and its layout."""
    shown = {
        str(cell.layout),
        f"mode {cell.aggregation.mode}",
        f"depth {cell.depth}",
        f"objective {cell.spec.objective}",
        *(f"option {option}" for option in cell.layout.options),
        *(f"configuration {one}" for one in cell.job.configuration.settings),
    }
    return shown | ({f"metric {cell.spec.metric}"} if cell.spec.metric else set())
