"""The lines that compute the factor or count that a weight lacks, but whose result is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.trace import READ
from conformance.tracing.graph import is_close

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Line
    from conformance.tracing.graph import Graph, Node


def unused_count(graph: Graph, used: Node, ratio: float) -> Line | None:
    """The line whose unused result is the needed count, such as a reduction of the used count.

    ``ratio`` is the ratio of the needed to the used count.
    """
    makers_of_used = graph.behind([used])
    for node in _unused(graph, used.rank):
        held = graph.operation(node).contents
        makers = makers_of_used & graph.behind([node]) if held.size == 1 else ()
        needed = (graph.operation(each).contents.total * ratio for each in makers)
        if any(each and is_close(held.total, each) for each in needed):
            return graph.operation(node).stack[0]
    return None


def unused_product(graph: Graph, off: float) -> Line | None:
    """The line that multiplies the token's loss by the lacking factor, but is not used."""
    for rank in range(len(graph.traces)):
        for node in _unused(graph, rank):
            held = graph.operation(node).contents.largest
            before = [one for one in graph.inputs(node) if graph.painted.get(one) is False]
            had = [graph.operation(one).contents.largest for one in before]
            is_loss = graph.operation(node).requires_grad
            if is_loss and any(is_close(held * off, one) for one in had):
                return graph.operation(node).stack[0]
    return None


def _unused(graph: Graph, rank: int) -> Iterator[Node]:
    """Yield the results, made before a rank's last backward pass, that no operation reads.

    Later results, such as a number to be logged, cannot enter the gradient.
    """
    operations = graph.traces[rank].operations
    read = {place for operation in operations for place in operation.inputs}
    ends = {*graph.traces[rank].roots.values(), *graph.traces[rank].gradients}
    backward = (at for at, one in enumerate(operations) if one.backward_pass is not None)
    last = max(backward, default=0)
    for node in graph.nodes():
        operation = graph.operation(node)
        is_made = node.rank == rank and operation.stack and operation.name != READ
        is_before = operation.backward_pass is None and node.place < last
        if is_made and is_before and node.place not in read | ends:
            yield node
