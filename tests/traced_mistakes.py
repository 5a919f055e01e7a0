"""Traces mistakes in copies of frameworks' real code: is the line that was edited suspected?

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.traced_mistakes [NAME …]`` prints for each of
`tests.mistakes_in_real_code` the finding that was traced, and the place of the edited statement
among its suspects.
"""

import ast
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from adapters.contract import Layout
from conformance.findings.errors import NotTracedError
from conformance.findings.verdict import Check, Verdict
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan, mode_of_advantages
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from conformance.sources.source import resolve
from conformance.tracing import columns
from conformance.tracing.finding import MOST_OF_A_CAUSE, traced_job
from conformance.tracing.proof import Prover
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from reference.aggregation import Aggregation, Mode
from tests.mistakes_in_real_code import (
    CASES,
    MISTAKES,
    TRACED,
    Edit,
    Mistake,
    Rewording,
    copied,
    packages,
)

MOST_PROVEN_WITH = 12
"""The most further findings of a mistake with which a line is proven."""


def traced(mistake: Mistake, folder: Path) -> str:
    """The smallest finding that a mistake makes wrong, and the place of its line among suspects.

    Findings that are wrong without the mistake say nothing about its line.
    """
    right = copied(mistake, folder / "right")
    edited = shutil.copytree(right, folder / "edited")
    package = edited / packages(mistake)[0]
    first, last = statement(mistake.edit, package)
    mistake.edit.apply(package)
    with _jobs(mistake, edited) as jobs, _without(mistake, right) as is_wrong_without:
        wrong = (
            cell for cell in cells(mistake) if _is_wrong(cell, jobs) and not is_wrong_without(cell)
        )
        several = [*islice(wrong, 1 + MOST_PROVEN_WITH)]
        traces: list[Trace] = []
        for found in filter(None, (_trace(cell, jobs) for cell in several[:MOST_OF_A_CAUSE])):
            traces.append(found)
            if found.job.is_wrong:
                break
        if not traces:
            return f"{mistake.name}: is not traced in {len(several)} wrong findings"
        trace = max(traces, key=lambda one: one.job.is_wrong)
        lines = Prover(jobs).proven(
            trace, sorted(several, key=lambda cell: cell.id != trace.finding)
        )
        places = [
            place
            for place, one in enumerate(lines, 1)
            if one.line.file.endswith(mistake.edit.file) and first <= one.line.number <= last
        ]
        hit = f"{places[0]}" if places else "not suspected"
        shown = [f"    {trace.place(one.line)}: {one.why}" for one in lines]
        return "\n".join([f"{mistake.name}: {hit}, {trace.finding}", *shown])


def _trace(cell: MatrixCell, jobs: SharedJobs) -> Trace | None:
    """The trace of a wrong finding; None if it cannot be traced."""
    job = traced_job(cell.job, jobs.pool, metric=columns.traced_metric(cell))
    if isinstance(job, TracedJob):
        with suppress(NotTracedError):
            return Trace.of(cell.id, job, jobs.pool.adapter.package, jobs.pool.source)
    return None


@contextmanager
def _jobs(mistake: Mistake, source: Path) -> Iterator[SharedJobs]:
    """Shared jobs that run the framework's code of a folder."""
    adapter = registry.create(mistake.framework, mistake.engine)
    ranks = max(cell.layout.world_size for cell in cells(mistake))
    with RankPool(adapter, resolve(adapter, str(source)).path, ranks) as pool:
        yield SharedJobs(pool)


def _is_wrong(cell: MatrixCell, jobs: SharedJobs) -> bool:
    return make(cell, jobs).verdict is Verdict.MISMATCH


@contextmanager
def _without(mistake: Mistake, source: Path) -> Iterator[Callable[[MatrixCell], bool]]:
    """A function that tells whether a cell's finding is wrong with the unchanged code.

    This code runs in a process of its own, as a process imports a framework from one folder only.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _Right.open, (mistake, source)) as process:
        yield lambda cell: process.submit(_Right.is_wrong, cell.id).result()
        process.submit(_Right.close)


class _Right:
    """Runs the code without the mistake, in the one process that calls it."""

    resources = ExitStack()
    jobs: SharedJobs
    cells: Mapping[str, MatrixCell]

    @classmethod
    def open(cls, mistake: Mistake, source: Path) -> None:
        cls.cells = {cell.id: cell for cell in cells(mistake)}
        cls.jobs = cls.resources.enter_context(_jobs(mistake, source))

    @classmethod
    def is_wrong(cls, name: str) -> bool:
        return _is_wrong(cls.cells[name], cls.jobs)

    @classmethod
    def close(cls) -> None:
        cls.resources.close()


def cells(mistake: Mistake) -> list[MatrixCell]:
    """The cells that may show a mistake: the likeliest first, and those on the fewest ranks."""
    layouts = [Layout.parse(text) for text in mistake.layouts]
    modes: dict[Mode, Aggregation | None] = dict.fromkeys(map(Mode, mistake.modes.split(",")))
    checks = frozenset(map(Check, mistake.checks.split(",")))
    mode = mode_of_advantages(registry.create(mistake.framework, mistake.engine), modes)
    plan = Plan(layouts=tuple(layouts), aggregations=modes, checks=checks, mode_of_advantages=mode)
    about_cp = "cp" in mistake.cause or "slices" in mistake.name
    chosen = [
        cell
        for cell in plan.cells()
        if isinstance(cell, MatrixCell) and columns.is_traced(cell) and cell.case.name in CASES
    ]

    def size(cell: MatrixCell) -> tuple[bool, bool, int]:
        is_of_others = cell.spec.check is not Check.WEIGHTS
        return about_cp and cell.layout.cp == 1, is_of_others, cell.layout.world_size

    return sorted(chosen, key=size)


def statement(edit: Edit | Rewording, package: Path) -> tuple[int, int]:
    """The first and the last line of the statement that an edit changes."""
    tree = ast.parse((package / edit.file).read_text())
    line = edit.line(package)
    around = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return min(around, key=lambda lines: lines[1] - lines[0])


def _print(mistake: Mistake) -> None:
    with tempfile.TemporaryDirectory(prefix="rl-loss-traced-") as folder:
        print(traced(mistake, Path(folder)), flush=True)


def main(names: Sequence[str]) -> None:
    """Trace the named mistakes, or all of them, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for mistake in (*MISTAKES, *TRACED):
        if mistake.name in (names or [mistake.name]):
            process = context.Process(target=_print, args=(mistake,))
            process.start()
            process.join()


if __name__ == "__main__":
    main(sys.argv[1:])
