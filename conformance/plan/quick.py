"""Chooses a subset of the jobs that detects the same mistakes: the quick plan.

The condition under which a mistake shows has at most two facts (`conformance.explain.conditions`),
such as a mode, a property of the case or a property of the layout. So the chosen jobs cover, for
every check, every pair among modes, cases and properties of layouts that any job has. A case of
production size, which takes seconds, is trained once. If a framework counts in rollouts, rollouts
of several samples do not fill its micro-batches, which crashed SkyRL 0.2.0 with packed rows and
equal micro-batches. Cases with such rollouts are trained in each format and number of
micro-batches. Each mode sees a step with fewer active tokens than data-parallel ranks, and several
steps of one generation. Each check sees a step whose ranks, micro-batches, samples and samples of a
prompt are different numbers, so that a factor identifies one count. A test checks that these jobs
still detect all mutants, each as one cause. Objectives in `WITHOUT_PAIRS`, which another objective
covers, are run with every mode, case and property of a layout, but not with every pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract import Option
from conformance.plan.checks import WITHOUT_PAIRS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from adapters.contract import Layout
    from conformance.corpus.cases import Case
    from conformance.plan.matrix import MatrixCell


Combination = tuple[str, ...]
"""A check with properties that occur together, such as ``weights, token_mean, cp=2``."""


OF_PIPELINES = {"pp=2", "pp=4", f"option={Option.INTERLEAVED}"}
"""Properties of layouts that need not be combined with every case. A pipeline passes on
micro-batches whatever they contain, and its last stage computes the loss as a single stage does."""

IN_ALL_VERSIONS = (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)
"""Modes that all versions of frameworks have, older ones included."""

MOST_TRIES = 6
"""If so many findings with the same part of their ids were declined and none of them ran, no
further finding with this part is tried."""

Candidate = TypeVar("Candidate")
Shown = TypeVar("Shown")


def quick_jobs(cells: Iterable[MatrixCell]) -> dict[str, AbstractSet[Combination]]:
    """The names of the jobs to run, each with the combinations that it is the first to show.

    Of jobs that show equally many combinations, the one with fewest ranks is chosen.
    """
    of_job: dict[str, list[MatrixCell]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: cell.layout.world_size):
        of_job[cell.job_id].append(cell)
    shown = {job: {*_combinations(sharing)} for job, sharing in of_job.items()}
    of_three = {job: {*_triples(sharing)} for job, sharing in of_job.items()}
    chosen = covering(shown)
    known = set[Combination]().union(*(of_three[job] for job in chosen))
    # These jobs are added afterwards, so that rules for a few jobs do not change other choices.
    on_top = covering({job: several - known for job, several in of_three.items()})
    return {**chosen, **on_top}


class Substitutes:
    """Cells that can replace cells whose jobs a framework declines."""

    def __init__(self, cells: Iterable[MatrixCell]) -> None:
        self._cells = {cell.id: cell for cell in cells}
        self._shown = {name: {*_combinations([cell])} for name, cell in self._cells.items()}
        self._parts = {name: _parts(cell) for name, cell in self._cells.items()}

    def of_declined(self, ran: Mapping[str, bool]) -> list[MatrixCell]:
        """The cells of jobs that show the combinations that declined jobs were chosen for.

        ``ran`` tells for the id of every finding so far whether its job ran. Of jobs that show
        equally many combinations, those with the fewest doubtful parts in their ids come first,
        then those on few ranks. A part is doubtful if findings with it were declined and none ran.
        """
        made = [name for name in self._cells if name in ran]
        left = [name for name in self._cells if name not in ran]
        of_trained = {part for name in made if ran[name] for part in self._parts[name]}
        declined = Counter(chain.from_iterable(self._parts[name] for name in made if not ran[name]))
        doubtful = {part: tries for part, tries in declined.items() if part not in of_trained}
        known = set[Combination]().union(*(self._shown[name] for name in made if ran[name]))

        def rank(name: str) -> tuple[int, int]:
            return sum(map(doubtful.__contains__, self._parts[name])), self._ranks(name)

        shown: dict[str, set[Combination]] = defaultdict(set)
        for name in sorted(left, key=rank):
            if all(doubtful.get(part, 0) < MOST_TRIES for part in self._parts[name]):
                shown[self._cells[name].job_id].update(self._shown[name] - known)
        jobs = covering(shown).keys()
        return [self._cells[name] for name in left if self._cells[name].job_id in jobs]

    def _ranks(self, name: str) -> int:
        return self._cells[name].layout.world_size


def _parts(cell: MatrixCell) -> tuple[Combination, ...]:
    """The parts of a cell's id, and all pairs of these parts."""
    parts = cell.spec.slug, cell.aggregation.mode, cell.case.name, str(cell.layout)
    return (*combinations(parts, 1), *combinations(parts, 2))


def _combinations(sharing: Sequence[MatrixCell]) -> Iterator[Combination]:
    """Yield the combinations of cells that share a job."""
    together = [*_together(sharing[0])]
    for cell in sharing:
        yield from map(_of_check(cell.spec.slug).__getitem__, together)
    case, layout, mode = sharing[0].case, sharing[0].layout, sharing[0].aggregation.mode
    if sharing[0].spec.objective in WITHOUT_PAIRS or case.layouts or mode not in IN_ALL_VERSIONS:
        return
    if _counts_of(case).has_several_samples_of_a_rollout:
        for check in {cell.spec.check for cell in sharing}:
            yield str(check), case.name, f"{layout.format}, {layout.micro_batches}"


class _OfCheck(dict[Combination, Combination]):
    """Combinations that begin with a check's slug, by their properties; many jobs share them."""

    def __init__(self, slug: str) -> None:
        super().__init__()
        self._slug = slug

    def __missing__(self, properties: Combination) -> Combination:
        self[properties] = one = (self._slug, *properties)
        return one


_of_check = cache(_OfCheck)


def _together(cell: MatrixCell) -> Iterable[Combination]:
    """The properties, mostly in pairs, that all cells of a job have in common."""
    if cell.case.layouts:
        return [(cell.case.name,)]
    of_layout = layout_properties(cell.layout)
    properties = [cell.aggregation.mode, cell.case.name, *of_layout]
    if cell.spec.objective in WITHOUT_PAIRS:
        return [(one,) for one in properties]
    of_case = {(cell.case.name, one) for one in of_layout if one in OF_PIPELINES}
    return (pair for pair in combinations(properties, 2) if pair not in of_case)


def _triples(sharing: Sequence[MatrixCell]) -> Iterator[Combination]:
    """Yield the combinations of a job's cells that depend on mode, case and layout at once.

    One mistake clamps a share of less than one active token per data-parallel rank to 1, unless an
    option hides it. Another, which shows only with `SHARED_GENERATION`, divides a step by the
    tokens of all steps of its generation.

    Steps in which all counts differ are trained in each mode, except for objectives in
    `WITHOUT_PAIRS`. A mistake that shows in few modes may still be ambiguous, which a run resolves
    at its end.
    """
    case, layout, mode = sharing[0].case, sharing[0].layout, sharing[0].aggregation.mode
    found: list[Combination] = []
    if _counts_of(case).fewest_active < layout.dp and not layout.options:
        found.append((mode, "fewer active tokens than ranks"))
    if len(case.steps) > 1 and Option.SHARED_GENERATION in layout.options:
        found.append((mode, "several steps of one generation"))
    if has_different_counts(sharing[0]):
        is_apart = sharing[0].spec.objective not in WITHOUT_PAIRS
        found.append((*([mode] if is_apart else []), "different counts"))
    yield from ((cell.spec.slug, *some) for cell in sharing for some in found)


@dataclass(frozen=True)
class _Counts:
    """The counts of a case that decide which mistakes it shows."""

    has_several_samples_of_a_rollout: bool
    fewest_active: float
    """The number of active tokens of the step with fewest, among steps with active tokens."""

    of_steps: tuple[tuple[int, ...], ...]
    """For each step, the number of samples and the distinct sizes of prompt groups."""


@cache
def _counts_of(case: Case) -> _Counts:
    active = [int(step.mask.sum()) for step in case.steps]
    return _Counts(
        any(len(np.unique(step.rollouts)) < step.size for step in case.steps),
        min(filter(None, active), default=np.inf),
        tuple(
            (step.size, *np.unique(np.unique(step.groups, return_counts=True)[1]).tolist())
            for step in case.steps
        ),
    )


def has_different_counts(cell: MatrixCell) -> bool:
    """Whether ranks, micro-batches, samples and samples of a prompt are different numbers.

    If two counts are equal, a gradient cannot show which of them divided it.
    """
    layout = cell.layout
    if layout.micro_batches == 1 or layout.dp == 1:
        return False
    ranks = (layout.dp, layout.cp, layout.tp, layout.pp)
    of_layout = [size for size in (*ranks, layout.micro_batches) if size != 1]
    return all(_are_different([*of_layout, *counts]) for counts in _counts_of(cell.case).of_steps)


def _are_different(counts: Sequence[object]) -> bool:
    return len({*counts}) == len(counts)


def covering(
    candidates: Mapping[Candidate, AbstractSet[Shown]],
) -> dict[Candidate, AbstractSet[Shown]]:
    """The chosen candidates, each with the things that no earlier chosen candidate shows.

    The choice is greedy: next comes the candidate that shows most of the missing things, or the
    first such candidate. The result has at most ln(n) + 1 times as many candidates as the smallest
    cover, where a candidate shows at most n things (Chvátal 1979, A greedy heuristic for the
    set-covering problem).
    """
    order = [*candidates]
    showing: dict[Shown, list[int]] = defaultdict(list)
    for place, shown in enumerate(candidates.values()):
        for one in shown:
            showing[one].append(place)
    new = np.array([len(shown) for shown in candidates.values()])
    chosen: dict[Candidate, AbstractSet[Shown]] = {}
    while showing:
        first = order[new.argmax()]
        chosen[first] = candidates[first] & showing.keys()
        for one in chosen[first]:
            new[showing.pop(one)] -= 1
    return chosen


@cache
def layout_properties(layout: Layout) -> tuple[str, ...]:
    """The properties of a layout, such as ``cp=2`` and ``format=thd``.

    The absence of a pipeline is not listed, since every other property also occurs without one.
    """
    kept = {name: value for name, value in vars(layout).items() if name not in ("pp", "options")}
    sizes = kept | ({"pp": layout.pp} if layout.pp > 1 else {})
    options = layout.options or ("none",)
    return (
        *(f"{name}={value}" for name, value in sizes.items()),
        *(f"option={option}" for option in options),
    )


def pairwise(layouts: Iterable[Layout]) -> list[Layout]:
    """A subset of layouts with all pairs of properties of all layouts, small worlds first."""
    by_size = sorted(layouts, key=lambda layout: layout.world_size)
    pairs = {one: {*combinations(layout_properties(one), 2)} for one in by_size}
    return sorted(covering(pairs), key=lambda layout: layout.world_size)
