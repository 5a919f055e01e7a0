"""The lines that subtract large numbers from each other, which leaves rounding errors of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.traced import TracedJob

LOST = 2.0**-20
"""A difference this small, relative to its operands, has hardly a correct digit in float32."""

LARGE = 1000.0
"""Differences of smaller numbers are not looked at: their rounding errors are small too."""


def digits_lost(graph: Graph, _: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines, those that subtract the largest numbers, the framework's own first."""
    nodes = [node for node in graph.nodes() if _loses(graph, node)]
    nodes.sort(key=lambda node: -_largest(graph, node))
    found: list[Suspect] = []
    for node in nodes:
        operation, largest = graph.operation(node), _largest(graph, node)
        left = operation.contents.largest
        words = f"leaves {left:.6g} of {largest:.6g}, about as little as rounding errors of that"
        found += (Suspect(line, words) for line in operation.stack[:MOST])
    return of_lines(sorted(found, key=lambda one: not is_own(one.line, package)))


def _loses(graph: Graph, node: Node) -> bool:
    """Whether a difference is about as small as the rounding errors of large numbers."""
    operation, largest = graph.operation(node), _largest(graph, node)
    is_difference = operation.name.startswith(("aten.sub", "aten.rsub", "jax.sub"))
    is_large = LARGE <= largest < math.inf
    return is_difference and is_large and operation.contents.largest <= LOST * largest


def _largest(graph: Graph, node: Node) -> float:
    held = (graph.operation(one).contents for one in graph.inputs(node))
    return max((one.largest for one in held if one.is_measured), default=0.0)
