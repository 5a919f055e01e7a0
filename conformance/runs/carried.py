"""Finds mistakes that carry a number from one step to the next, in a process with many jobs.

Each finding of such a mistake depends on the job that happened to run before it, so each looks like
a separate mistake.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.explain.causes import is_inferred
from conformance.findings.cause import Severity
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import WRONG
from conformance.judging.comparison import behaviour
from conformance.judging.weights import Trained
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.plan.matrix import MatrixCell
    from conformance.runs.jobs import SharedJobs

MISTAKE = "depends_on_steps_before"

MOST = 4
"""The most causes that are tried, the worst first."""

SAME = 1e-4
"""The largest relative difference between numbers that count as equal."""


class Carried(NamedTuple):
    """A number of a step after each of two other steps, on which it should not depend."""

    after: tuple[str, str]
    numbers: tuple[float, float]

    def __str__(self) -> str:
        (one, other), (first, second) = self.after, self.numbers
        return f"{first:.6g} after a step of {one}, {second:.6g} after one of {other}"


def of_causes(
    causes: Sequence[Cause], cells: Mapping[str, MatrixCell], jobs: SharedJobs
) -> Iterator[tuple[Cause, Carried]]:
    """Yields the causes whose findings depend on the job that ran before.

    A single cause that a known mistake explains is not tried, as it needs no other name.
    """
    measured = [one for one in causes if one.severity in (Severity.GRADIENT, Severity.LOGGED)]
    if len(measured) < 2 and not any(map(is_inferred, measured)):
        return
    for cause in measured[:MOST]:
        own = (cells[name] for name in cause.findings if name in cells)
        cell = next((one for one in own if not one.spec.law), None)
        carried = None if cell is None else _carried(cell, cells.values(), jobs)
        if carried is not None:
            yield cause, carried


def renamed(
    carried: Sequence[tuple[Cause, Carried]], findings: Mapping[str, Finding]
) -> Iterator[Finding]:
    """Yields the findings of the given causes with one diagnosis, so that they become one cause."""
    for cause, numbers in carried:
        diagnosis = Diagnosis(name=MISTAKE, explanation=f"{numbers}")
        for finding in (findings[name] for name in cause.findings if name in findings):
            if finding.verdict in WRONG:
                yield finding.model_copy(update={"diagnosis": diagnosis, "clues": None})


def _carried(
    cell: MatrixCell, candidates: Iterable[MatrixCell], jobs: SharedJobs
) -> Carried | None:
    """A number of a cell's job that two other jobs of its kind change; None if there is none."""
    seen: dict[str, list[float]] = {}
    for other in islice(_others(cell, candidates), 3):
        jobs.run(other.job)
        if numbers := _numbers(cell, jobs):
            seen[other.case.name] = numbers
        for name, before in seen.items():
            for one, now in zip(before, numbers, strict=False):
                if not np.isclose(one, now, rtol=SAME, equal_nan=True):
                    return Carried((name, other.case.name), (one, now))
    return None


def _others(cell: MatrixCell, candidates: Iterable[MatrixCell]) -> Iterator[MatrixCell]:
    """Yield cells of the same kind whose numbers of active tokens differ from each other."""
    counts = {_tokens(cell)}
    for other in candidates:
        is_alike = (other.spec, other.layout, other.aggregation.mode) == (
            *(cell.spec, cell.layout, cell.aggregation.mode),
        )
        if is_alike and _tokens(other) not in counts:
            counts.add(_tokens(other))
            yield other


def _tokens(cell: MatrixCell) -> int:
    return int(cell.case.steps[-1].mask.sum())


def _numbers(cell: MatrixCell, jobs: SharedJobs) -> list[float]:
    """The gradient of a job, or the values of its metric; empty if the job does not run."""
    outcome, metric = jobs.run(cell.job), cell.spec.metric
    if not isinstance(outcome, Ran):
        return []
    if metric is None:
        given = behaviour(Trained(cell.job, outcome.observations, jobs.description), ())
        return [number for pair in given.gradients for number in pair if number is not None]
    logged = (one.reported.get(metric, ()) for one in outcome.observations)
    return [number for numbers in logged for number in numbers if number is not None]
