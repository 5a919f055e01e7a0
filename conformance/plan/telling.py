"""Orders the jobs of a review: those that run changed statements come first.

For each objective one job, the scout, shows which changed statements the objective's code runs. A
statement that few kinds of jobs run counts more for each of these kinds. Jobs that run no changed
statement come last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.objective import Objective
from conformance.plan.matrix import MatrixCell, StartupCell
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from adapters.contract import Adapter, Layout
    from conformance.plan.plan import Plan
    from conformance.ranks.changed import Place

JOBS = 96
"""The largest number of jobs to run after the scouts."""

MOST_RANKS = 4

LEAST_OF_A_FORMAT = 0.2
"""The smallest share of an adapter's layouts that a format needs to be chosen: slime has a few
layouts in a format that only old versions support."""

UNKNOWN = 0.01
"""The weight of a job whose kind has no scout, as when only laws or poison are checked."""

OF_ALL_CHECKS = 4
"""One in this many jobs is taken from a check or a mode that has no findings yet."""

OF_SEVERAL_STEPS = 3
"""The factor for a batch with several steps: few cases have several, and only they show a number
that is taken from the previous step."""

PARALLEL = ("tp", "pp")


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """The layouts of a review."""

    usual: tuple[Layout, ...]
    """The layout on which most mistakes show, the layout of most users, and a layout with a single
    rank, which runs cases that cannot be cut for several ranks."""

    special: tuple[Layout, ...] = ()
    """The smallest layouts with a pipeline, tensor parallelism or a layout option, which run code
    that the usual layouts do not run."""

    @classmethod
    def of(cls, adapter: Adapter) -> Layouts:
        """Choose the layouts of an adapter."""
        usual = adapter.layouts()[0].format
        small = [one for one in adapter.layouts() if one.world_size <= MOST_RANKS]
        formats = Counter(one.format for one in small)
        fitting = [one for one in small if formats[one.format] >= LEAST_OF_A_FORMAT * len(small)]

        def cut(layout: Layout) -> tuple[int, int, bool, bool]:
            parts = (layout.dp > 1) + (layout.cp > 1) + (layout.micro_batches != 1)
            of_tokens = layout.micro_batches == "tokens"
            return -len([*_special(layout)]), parts, layout.format != usual, of_tokens

        first = max(fitting, key=cut)
        plain = [one for one in fitting if one != first and _is_plain(one)]
        second = sorted(plain, key=lambda one: (one.format != usual, one.micro_batches == "tokens"))
        alone = [one for one in fitting if one.world_size == 1 and not [*_special(one)]]
        alone.sort(key=lambda one: (one.micro_batches != 2, one.format != usual, str(one)))
        chosen = (first, *second[:1], *alone[:1])
        left = {part for one in small for part in _special(one)}
        left -= {part for one in chosen for part in _special(one)}
        by_size = sorted(small, key=lambda one: (len([*_special(one)]), one.world_size))
        special = [
            next(one for one in by_size if part in _special(one)) for part in sorted(left, key=str)
        ]
        return cls(usual=chosen, special=tuple(dict.fromkeys(special)))


def _special(layout: Layout) -> Iterator[str]:
    yield from layout.options
    yield from (part for part in PARALLEL if getattr(layout, part) > 1)


def _is_plain(layout: Layout) -> bool:
    has_several = layout.dp > 1 and layout.micro_batches != 1
    return has_several and layout.cp == 1 and not [*_special(layout)]


class Jobs:
    """The jobs that a review may run, with their cells, and the scouts among them."""

    def __init__(self, plan: Plan, adapter: Adapter, layouts: Layouts) -> None:
        usual = replace(plan, layouts=layouts.usual)
        special = replace(plan, layouts=layouts.special or layouts.usual[:1])
        cells = [
            cell
            for cell in (*usual.cells(), *special.cells_of_cases)
            if isinstance(cell, MatrixCell)
            and cell.spec.check in plan.checks
            and _is_offered(cell, adapter)
            and (cell.layout in layouts.usual or cell.spec.objective is Objective.POLICY)
        ]
        cells_of: dict[str, dict[str, MatrixCell]] = defaultdict(dict)
        for cell in cells:
            cells_of[name_of(cell)][cell.id] = cell
        self.cells = {name: (*several.values(),) for name, several in cells_of.items()}
        self.by_id = {cell.id: cell for cell in cells}
        first: dict[Hashable, MatrixCell] = {}
        for cell in sorted(
            cells, key=lambda one: one.aggregation.mode is not plan.mode_of_advantages
        ):
            if cell.spec.law or type(cell) is not MatrixCell:
                continue
            is_policy = cell.spec.objective is Objective.POLICY
            what = (cell.aggregation.mode, cell.layout) if is_policy else cell.spec.objective
            first.setdefault(what, cell)
        of_usual = [one for one in first.values() if one.layout in layouts.usual]
        self.scouts = sorted(of_usual, key=lambda one: one.spec.objective is not Objective.POLICY)
        self.last_scouts = [
            *(
                one
                for one in first.values()
                if one not in of_usual and one.aggregation.mode is plan.mode_of_advantages
            ),
            *(one for one in cells if isinstance(one, StartupCell)),
        ]


def name_of(cell: MatrixCell) -> str:
    """The name of a cell's job; each configuration has a job of its own."""
    return cell.id if isinstance(cell, StartupCell) else cell.job_id


class Turn(NamedTuple):
    """A job to run, with the cells to judge; a scout is run without judging any."""

    cells: tuple[MatrixCell, ...]
    is_scout: bool = False


class Order:
    """The order of jobs, by the changed ``places`` that earlier jobs have run.

    ``is_everywhere`` says that changed statements run on import, so that any job may show the
    change.
    """

    def __init__(
        self,
        jobs: Jobs,
        places: Iterable[Place],
        is_offered: Callable[[MatrixCell], bool],
        *,
        is_everywhere: bool = False,
    ) -> None:
        self._jobs = jobs
        self.not_run = {*places}
        self._base = 0.5 if is_everywhere else 0.0
        self._left = {
            name: offered
            for name, cells in jobs.cells.items()
            if (offered := tuple(filter(is_offered, cells)))
        }
        self._scouts = [one for one in jobs.scouts if name_of(one) in self._left]
        self._last = [one for one in jobs.last_scouts if name_of(one) in self._left]
        self._ran: dict[Kind, frozenset[Place]] = {}
        self._facts = {
            name: frozenset(chain.from_iterable(map(_facts, cells)))
            for name, cells in self._left.items()
        }
        self._kinds = {name: _kind(cells[0]) for name, cells in self._left.items()}
        self._known: set[Hashable] = set()
        self._new: dict[str, frozenset[Hashable]] = {}
        self._looked_at: set[Hashable] = set()
        self._made = 0
        self._was_scout = False
        self._upcoming: Turn | None = None

    def note(self, cell: MatrixCell, ran: frozenset[Place]) -> None:
        """Record which changed statements a cell's job has run."""
        self.not_run -= ran
        self._ran[_kind(cell)] = self._ran.get(_kind(cell), frozenset()) | ran

    def note_declined(self, cell: MatrixCell) -> None:
        """Record that a cell's job did not run, so that other jobs have to show its facts."""
        self._known -= self._new.pop(name_of(cell), frozenset())
        self._made -= 1

    def upcoming(self) -> Turn | None:
        """The next job, without taking it; None if no job would show anything new."""
        if self._upcoming is None:
            self._upcoming = self._scout() or self._next()
        return self._upcoming

    def next(self) -> Turn | None:
        """Take the next job; None if no job would show anything new."""
        turn, self._upcoming = self.upcoming(), None
        return turn

    def _scout(self) -> Turn | None:
        """The next scout; scouts alternate with jobs that are judged."""
        self._was_scout = not self._was_scout
        if not self._was_scout and self._best() is not None:
            return None
        scouts = self._scouts or (self._last if self.not_run else [])
        return Turn((scouts.pop(0),), is_scout=True) if scouts else None

    def _next(self) -> Turn | None:
        if self._made >= JOBS:
            return None
        chosen = self._best()
        if chosen is None or self._made % OF_ALL_CHECKS == OF_ALL_CHECKS - 1:
            chosen = next(filter(self._is_new, self._left), chosen)
        if chosen is None:
            return None
        cells = self._left.pop(chosen)
        self._made += 1
        self._new[chosen] = self._facts[chosen] - self._known
        self._known |= self._new[chosen]
        self._looked_at.update(map(_part, cells))
        return Turn(cells)

    def _best(self) -> str | None:
        """The job with most new facts, weighted by the changed statements that its kind runs."""
        often = Counter(chain.from_iterable(self._ran.values()))
        weights = {
            kind: self._base + sum(1 / often[place] for place in ran)
            for kind, ran in self._ran.items()
        }
        of_kind = {kind: self._weight(kind, weights) for kind in {*self._kinds.values()}}
        gains = {
            name: weight * len(self._facts[name] - self._known)
            for name in self._left
            if (weight := of_kind[self._kinds[name]])
        }
        best = max(gains, key=lambda name: gains[name], default=None)
        return best if best is not None and gains[best] else None

    def _weight(self, kind: Kind, weights: Mapping[Kind, float]) -> float:
        """The weight of a kind, or else of the same objective and layout in another mode."""
        if kind in weights:
            return weights[kind]
        alike = [one for one in weights if (one.objective, one.layout) == (kind[0], kind[2])]
        is_scouted = self._scouts or kind.layout or kind.objective not in set(Objective)
        unknown = self._base if is_scouted else max(self._base, UNKNOWN)
        return max((weights[one] for one in alike), default=unknown)

    def _is_new(self, name: str) -> bool:
        return any(_part(cell) not in self._looked_at for cell in self._left[name])


def _part(cell: MatrixCell) -> Hashable:
    """The part of the contract that a cell belongs to: a check, for the policy loss in one mode.

    Every review covers each part, because right findings that do not run the change show under
    which condition a mistake occurs.
    """
    is_of_loss = cell.spec.objective is Objective.POLICY
    return cell.spec.check, cell.aggregation.mode if is_of_loss else None


class Kind(NamedTuple):
    """The common properties of jobs that mostly run the same code."""

    objective: str
    mode: Mode
    layout: Layout | None = None
    """The layout, if it has a pipeline, tensor parallelism or an option."""


def _kind(cell: MatrixCell) -> Kind:
    mode = cell.aggregation.mode
    if isinstance(cell, StartupCell):
        return Kind(cell.config_case.name, mode)
    return Kind(cell.spec.objective, mode, cell.layout if [*_special(cell.layout)] else None)


def _facts(cell: MatrixCell) -> Iterator[Hashable]:
    """Yield the facts that a cell shows, such as its mode with its layout, and its case.

    A cell of the policy loss also shows its mode with its case. A cell of a law, or of an altered
    column, shows three facts.
    """
    slug, mode, case = cell.spec.slug, cell.aggregation.mode, cell.case.name
    if isinstance(cell, StartupCell):
        yield slug
        return
    if law := cell.spec.law:
        yield from ((law, cell.spec.check), (law,), (cell.spec.objective, cell.spec.check))
        return
    yield slug, mode, cell.layout
    yield slug, mode, cell.layout.micro_batches
    if len(cell.case.steps) > 1:
        yield from ((slug, mode, "several steps", number) for number in range(OF_SEVERAL_STEPS))
    yield slug, case
    if cell.spec.objective is Objective.POLICY:
        yield slug, mode, case


def _is_offered(cell: MatrixCell, adapter: Adapter) -> bool:
    """Whether the framework's record has a cell's mode and objective, in some version."""
    record = adapter.framework
    if record is None:
        return True
    modes = {Mode(mode.partition(":")[0]) for mode in record.mode_names.values()}
    return cell.aggregation.mode in modes and cell.spec.objective in {
        Objective.POLICY,
        *record.objectives,
    }
