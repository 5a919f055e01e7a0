"""The lines that make a logged number, NaN or infinity, or a difference of large numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformance.tracing.graph import is_close
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.trace import RankTrace
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.traced import TracedJob

LOST = 2.0**-20
"""The relative size of a difference below which float32 leaves hardly any correct digit."""

LARGE = 1000.0
"""The least size of numbers whose differences are considered; others have small rounding errors."""


def made_by(graph: Graph, job: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines that first make the logged number on its rank, the framework's own first.

    1 minus the number is searched for as well, since an adapter may read a share as 1 minus the
    logged one.
    """
    return lines_of(graph.traces[job.rank], (job.observed, 1 - job.observed), package)


def lines_of(trace: RankTrace, numbers: Sequence[float], package: str | None) -> list[Suspect]:
    """At most three lines that first make one of some numbers, with either sign."""
    suspects = _made(trace, [*map(abs, numbers)])
    return of_lines(sorted(suspects, key=lambda one: not is_own(one.line, package)))


def _made(trace: RankTrace, sizes: Sequence[float]) -> Iterator[Suspect]:
    """Yield the lines of the first tensor that holds one of the numbers."""
    words = f"makes the logged number, {sizes[0]:.6g}"
    for operation in trace.operations:
        entries = operation.contents.values if operation.contents.size == 1 else ()
        if operation.stack and any(is_close(abs(one), size) for one in entries for size in sizes):
            yield from (Suspect(line, words) for line in operation.stack)
            break


def digits_lost(graph: Graph, _: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines that subtract large, nearly equal numbers, the framework's own first.

    The difference of such numbers is hardly more than their rounding errors. Operations that
    require a gradient are left out: they compute the loss, after the advantages.
    """
    found: list[Suspect] = []
    largest = {node: _largest(graph, node) for node in graph.nodes() if _subtracts(graph, node)}
    for node, size in sorted(largest.items(), key=lambda one: -one[1]):
        operation = graph.operation(node)
        left = operation.contents.largest
        if LARGE <= size < math.inf and left <= LOST * size:
            words = f"leaves {left:.6g} of {size:.6g}, about as little as rounding errors of that"
            found += (Suspect(line, words) for line in operation.stack[:MOST])
    return of_lines(sorted(found, key=lambda one: not is_own(one.line, package)))


def _subtracts(graph: Graph, node: Node) -> bool:
    operation = graph.operation(node)
    is_difference = operation.name.startswith(("aten.sub", "aten.rsub", "jax.sub"))
    return is_difference and not operation.requires_grad


def _largest(graph: Graph, node: Node) -> float:
    held = (graph.operation(one).contents for one in graph.inputs(node))
    return max((one.largest for one in held if one.is_measured), default=0.0)
