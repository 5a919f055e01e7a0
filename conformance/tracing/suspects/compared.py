"""The lines that scale an advantage before a loss selects tokens by their advantages."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from conformance.findings.trace import MULTIPLYING
from conformance.tracing.chain import chain
from conformance.tracing.suspects.lost import COMPARING
from conformance.tracing.suspects.reasons import Suspect, of_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.chain import Chain
    from conformance.tracing.graph import Graph, Node

ORDERING = ("aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue")
"""Name prefixes of operations that sort entries."""


def compared(graph: Graph) -> list[Suspect]:
    """At most three lines that multiply an advantage before it is compared.

    A loss must compare plain advantages: if they are divided by a count first, it selects other
    tokens.
    """
    return of_lines(suspect for way in _selecting(graph) for suspect in _changed(way))


def _selecting(graph: Graph) -> Iterator[Chain]:
    """Yield the chains to operations that compare or sort entries after subtracting a mean."""
    for node in sorted(graph.nodes()):
        if graph.operation(node).name.startswith((*COMPARING, *ORDERING)):
            for end in (one for one in graph.inputs(node) if graph.painted.get(one) is False):
                way = chain(graph, end)
                if any(_subtracts(graph, one) for one in way.way):
                    yield way


def _changed(way: Chain) -> Iterator[Suspect]:
    """Yield the lines that multiply advantages before their mean is subtracted."""
    before = [*takewhile(lambda node: not _subtracts(way.graph, node), way.way)]
    for factor in (one for one in way.factors if one.node in before and not one.is_idle):
        operation = way.operation(factor)
        if operation.name.startswith(MULTIPLYING) and operation.contents.size > 1:
            words = f"multiplies an advantage by {factor.value:.6g}, and tokens are selected by it"
            yield from (Suspect(line, words) for line in operation.stack[:1])


def _subtracts(graph: Graph, node: Node) -> bool:
    return ".sub" in graph.operation(node).name
