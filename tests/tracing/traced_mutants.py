"""The rank of a mutant's line among the suspects of its smallest wrong finding.

``python -m tests.tracing.traced_mutants [NAME …]`` prints them for the named mutants or for all.

Some mutants have no line that a trace could find. `TruncatedByZip`, `LastMicroBatchDropped`,
`FilledUpWithRepeats` and `MicroBatchesCarriedOver` drop, repeat or keep samples before any
operation of torch sees them; `SequenceRatioPerSlice` has a method that does nothing. Mistakes that
need several terms in one loss, such as `DivergenceOnEveryMicroBatch` and `EntropyLeftOutTogether`,
are not seen in a trace, where terms are trained alone. Advantages are left out: `native` computes
them from Python floats, which no tensor holds.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.findings.errors import NotTracedError
from conformance.findings.trace import Line
from conformance.findings.verdict import Check
from conformance.judging.outcome import judge
from conformance.judging.weights import Trained
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import Ran, RankPool
from conformance.tracing.columns import is_traced, traced_metric
from conformance.tracing.finding import traced_job
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from tests.mutants import MUTANTS
from tests.mutants.kills import cells_of
from tests.mutants.mutant import LARGEST, Mutant, MutantAdapter, MutantJob

MOST_TRIED = 20
"""The most findings of a mutant that are tried, those on the most ranks first, until one is wrong;
after these, one finding of each layout is tried."""


def place(mutant: type[Mutant], pool: RankPool) -> int | None:
    """The place of the mutant's first line among the suspects, from 1; None if there is none.

    Raises:
        NotTracedError: no finding of the mutant is traced and wrong.
    """
    cells = (cell for cell in cells_of(mutant.spec, mutant) if is_traced(cell))
    for cell in _tried(cell for cell in cells if cell.spec.check is not Check.ADVANTAGES):
        job = MutantJob(**vars(cell.job), mutant=mutant)
        ran = pool.run(job)
        is_killed = isinstance(ran, Ran) and judge(cell.spec)(
            Trained(job, ran.observations, pool.description)
        )
        if not is_killed or is_killed.verdict != "mismatch":
            continue
        traced = traced_job(job, pool, metric=traced_metric(cell))
        if isinstance(traced, TracedJob) and traced.is_wrong:
            lines = [one.line for one in Trace.of(cell.id, traced, None, None).suspects]
            return next((n for n, line in enumerate(lines, 1) if _has(mutant, line)), None)
    raise NotTracedError(f"no finding of {mutant.__name__} is traced and wrong")


def _tried(cells: Iterable[MatrixCell]) -> Iterator[MatrixCell]:
    """Yields the first cells on the most ranks, and then one cell of each layout."""
    largest = sorted(cells, key=lambda one: one.layout.world_size)[::-1]
    yield from largest[:MOST_TRIED]
    yield from {cell.layout: cell for cell in reversed(largest[MOST_TRIED:])}.values()


def _has(mutant: type[Mutant], line: Line) -> bool:
    """Whether a line is in the mutant, or in one of its base classes or functions beside them."""
    for one in inspect.getmro(mutant):
        if not one.__module__.startswith("tests.mutants.") or one is Mutant:
            continue
        module = sys.modules[one.__module__]
        defined = [held for held in vars(module).values() if inspect.isclass(held)]
        classes = [held for held in defined if held.__module__ == one.__module__]
        if Path(inspect.getfile(one)).samefile(line.file):
            around = [held for held in classes if _is_in(line, held)]
            if one in around or not around:
                return True
    return False


def _is_in(line: Line, one: type) -> bool:
    lines, first = inspect.getsourcelines(one)
    return first <= line.number < first + len(lines)


def main(names: Sequence[str]) -> None:
    """Print the place of each mutant's line, and how many lines are first, or suspected at all."""
    places: list[int | None] = []
    with RankPool(MutantAdapter(), None, LARGEST) as pool:
        for mutant in MUTANTS:
            if mutant.__name__ in (names or [mutant.__name__]):
                try:
                    found = place(mutant, pool)
                except NotTracedError as error:
                    print(f"{mutant.__name__}: {error}", flush=True)
                    continue
                places.append(found)
                print(f"{mutant.__name__}: {found or 'not suspected'}", flush=True)
    suspected = len(places) - places.count(None)
    print(f"{places.count(1)} first, {suspected} suspected, of {len(places)} that are traced")


if __name__ == "__main__":
    main(sys.argv[1:])
