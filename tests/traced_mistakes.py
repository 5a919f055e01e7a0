"""Traces mistakes in copies of frameworks' real code: is the line that was edited suspected?

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.traced_mistakes [NAME …]`` prints for each of
`tests.mistakes_in_real_code` the finding that was traced, and the place of the edited statement
among its suspects.
"""

import ast
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.contract import Layout
from adapters.toolkit.source import resolve
from conformance.findings.verdict import Check, Verdict
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from conformance.tracing import columns, tracer
from conformance.tracing.trace import Trace
from reference.aggregation import Aggregation, Mode
from tests.mistakes_in_real_code import CASES, MISTAKES, Edit, Mistake, copied, packages

EMPTY_SAMPLES = "fully_masked_sample"
"""A case that some frameworks have wrong without any edit."""


def traced(mistake: Mistake, folder: Path) -> Iterator[str]:
    """The smallest wrong finding of a mistake, and the place of its statement among suspects.

    Findings of weights come first.
    """
    source = copied(mistake, folder)
    package = source / packages(mistake)[0]
    first, last = statement(mistake.edit, package)
    mistake.edit.apply(package)
    adapter = registry.create(mistake.framework, mistake.engine)
    path = resolve(adapter, str(source)).path
    with RankPool(adapter, path, max(cell.layout.world_size for cell in cells(mistake))) as pool:
        jobs = SharedJobs(pool)
        for cell in cells(mistake):
            if make(cell, jobs).verdict is not Verdict.MISMATCH:
                continue
            job = tracer.trace(cell.job, pool, metric=cell.spec.metric)
            if isinstance(job, tracer.TracedJob) and job.is_wrong:
                trace = Trace.of(cell.id, job, adapter.package, path)
                hits = [
                    place
                    for place, one in enumerate(trace.suspects, 1)
                    if one.line.file.endswith(mistake.edit.file)
                    and first <= one.line.number <= last
                ]
                yield f"{mistake.name}: {hits[0] if hits else 'not suspected'}, {cell.id}"
                return
    yield f"{mistake.name}: no wrong weight"


def cells(mistake: Mistake) -> list[MatrixCell]:
    """The cells that may show a mistake, those on the fewest ranks first."""
    layouts = [Layout.parse(text) for text in mistake.layouts]
    modes: dict[Mode, Aggregation | None] = dict.fromkeys(map(Mode, mistake.modes.split(",")))
    checks = frozenset(map(Check, mistake.checks.split(",")))
    plan = Plan(layouts=tuple(layouts), aggregations=modes, checks=checks)
    about_cp = "cp" in mistake.cause or "slices" in mistake.name
    chosen = [
        cell
        for cell in plan.cells()
        if isinstance(cell, MatrixCell) and columns.is_traced(cell) and cell.case.name in CASES
        if cell.case.name != EMPTY_SAMPLES or "empty" in mistake.name or "invalid" in mistake.name
    ]

    def size(cell: MatrixCell) -> tuple[bool, bool, int]:
        is_of_others = cell.spec.check is not Check.WEIGHTS
        return about_cp and cell.layout.cp == 1, is_of_others, cell.layout.world_size

    return sorted(chosen, key=size)


def statement(edit: Edit, package: Path) -> tuple[int, int]:
    """The first and the last line of the statement that an edit changes."""
    tree = ast.parse((package / edit.file).read_text())
    line = edit._readings(tree)[edit.reading - 1].lineno
    around = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return min(around, key=lambda lines: lines[1] - lines[0])


def _print(mistake: Mistake) -> None:
    with tempfile.TemporaryDirectory(prefix="rl-loss-traced-") as folder:
        for line in traced(mistake, Path(folder) / "source"):
            print(line, flush=True)


def main(names: Sequence[str]) -> None:
    """Trace mistakes, all if no name is given, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for mistake in MISTAKES:
        if mistake.name in (names or [mistake.name]):
            process = context.Process(target=_print, args=(mistake,))
            process.start()
            process.join()


if __name__ == "__main__":
    main(sys.argv[1:])
