"""The lines that make NaN or infinity of finite numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformance.findings.trace import GIVEN
from conformance.tracing.graph import ALLOCATIONS, Node
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Contents
    from conformance.tracing.graph import Graph
    from conformance.tracing.wrong_weight import WrongWeight


def made_not_finite(weight: WrongWeight) -> list[Suspect]:
    """At most three lines: those that made NaN or infinity first, the framework's own before."""
    return of_lines(_making(weight))


def _making(weight: WrongWeight) -> Iterator[Suspect]:
    """Yield the lines that make NaN or infinity of finite numbers, in the order of operations."""
    graph = weight.chain.graph
    for node in sorted(_nodes(graph), key=lambda node: node.place):
        operation = graph.operation(node)
        before = [graph.operation(one).contents for one in graph.inputs(node)]
        if _is_finite(operation.contents) or not all(map(_is_finite, before)):
            continue
        words = f"makes {operation.contents.largest} of finite numbers"
        if ".div" in operation.name and before[-1].nonzero < before[-1].size:
            words = "divides by 0"
        own = operation.stack if weight.is_own(operation.stack[0]) else ()
        yield from (Suspect(line, words) for line in own[:MOST])


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yield what computes with numbers: a mask may be filled with infinity."""
    for rank, trace in enumerate(graph.traces):
        for place, operation in enumerate(trace.operations):
            is_allocated = operation.name.startswith(ALLOCATIONS) or operation.name == GIVEN
            is_filled = not all(map(math.isfinite, operation.numbers))
            if operation.stack and operation.inputs and not (is_allocated or is_filled):
                yield Node(rank, place)


def _is_finite(held: Contents) -> bool:
    return math.isfinite(held.largest)
