"""The lines that make a logged number which is no sum of values that tokens are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.tracing.graph import is_close
from conformance.tracing.suspects.reasons import Suspect, of_lines
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import RankTrace
    from conformance.tracing.graph import Graph
    from conformance.tracing.traced import TracedJob


def made_by(graph: Graph, job: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines that first have the number on the rank that logs it, its own first.

    A share that an adapter subtracts from 1 is looked for as well.
    """
    return lines_of(graph.traces[job.rank], (job.observed, 1 - job.observed), package)


def lines_of(trace: RankTrace, numbers: Sequence[float], package: str | None) -> list[Suspect]:
    """The lines that first have a number of either sign, or else one of some others."""
    suspects = [*_made(trace, [*map(abs, numbers)])]
    suspects.sort(key=lambda one: not is_own(one.line, package))
    return of_lines(suspects)


def _made(trace: RankTrace, sizes: Sequence[float]) -> Iterator[Suspect]:
    """Yield the lines of the first tensor that holds the number, then those of plain Python."""
    words = f"makes the logged number, {sizes[0]:.6g}"
    for operation in trace.operations:
        entries = operation.contents.values if operation.contents.size == 1 else ()
        if operation.stack and any(is_close(abs(one), size) for one in entries for size in sizes):
            yield from (Suspect(line, words) for line in operation.stack)
            break
    for returned in trace.returned:
        if any(map(returned.has, sizes)):
            yield from (Suspect(line, words) for line in returned.stack)
            return
