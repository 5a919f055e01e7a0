"""The lines after which a token's value is lost, on all ranks or on a rank that needs it."""

from __future__ import annotations

from collections import Counter
from itertools import islice, zip_longest
from typing import TYPE_CHECKING

from conformance.findings.trace import LISTED, READ
from conformance.tracing.chain import chain
from conformance.tracing.graph import ALLOCATIONS, MOVING, NEGLIGIBLE, Node
from conformance.tracing.source import chosen_by
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines
from conformance.tracing.wrong_weight import is_own

COMPARING = tuple(f"aten.{name}." for name in ("lt", "le", "gt", "ge", "eq", "ne"))
"""Name prefixes of operations that compare entries."""

HANDING_ON = ("aten.sum", "aten.add", "aten.cat", "aten.stack", "aten.index")
"""Name prefixes of operations that copy or sum entries."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.tracing.graph import Graph
    from conformance.tracing.traced import TracedJob


def lost_after(graph: Graph, job: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines at which the value of a token is lost, the likeliest first.

    If another rank has the value, these are the line of the reduction that leaves out the rank
    without the value, and the line that chose the reduction's group.
    """
    is_logged = job.logged is not None
    is_backward = bool(graph.trained) and not is_logged
    nodes = [node for node, in_gradient in graph.painted.items() if in_gradient is is_backward]
    if is_logged or not nodes:
        nodes = [*_with_value(graph)]
    reached = Counter(node.rank for node in nodes)
    holder = max(sorted(reached), key=lambda rank: (reached[rank], rank == job.rank), default=0)
    ways = sorted(node for node in nodes if node.rank == holder)
    lacking = _lacking(graph, holder, job)
    found = [*_cut_off(graph, ways)]
    if job.is_nowhere:
        found += [*_made_0(graph), *_moved(graph, ways)]
    elif lacking is not None:
        found += _not_shared(graph, ways, lacking, package)
        found += _last(graph, sorted(one for one in nodes if one.rank == lacking), 1, package)
    found += _last(graph, ways, MOST if is_logged else 1, package)
    found.sort(key=lambda one: not is_own(one.line, package))
    return of_lines(found)


def _with_value(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that hold the token's value outside of a gradient.

    Comparisons are left out, as they yield booleans. So are copies and sums whose result is smaller
    than the value, as they are made of other entries.
    """
    kept: dict[Node, float] = {}
    for node in (one for one, in_gradient in graph.painted.items() if not in_gradient):
        operation = graph.operation(node)
        before = [kept[one] for one in graph.inputs(node) if one in kept]
        has_other = any(one in graph.painted for one in graph.inputs(node)) and not before
        least = min(before, default=0.0) * (1 - NEGLIGIBLE)
        is_less = operation.name.startswith(HANDING_ON) and operation.contents.largest < least
        if not (has_other or is_less or operation.name.startswith(COMPARING)):
            kept[node] = operation.contents.largest
            yield node


def _made_0(graph: Graph) -> Iterator[Suspect]:
    """Yield the line on the way to a loss that turns the value into 0, and its callers."""
    for node in sorted(() if graph.trained else graph.before_roots):
        if _is_0(graph, node):
            words = "makes 0 of the value of the token"
            yield from (Suspect(line, words) for line in graph.operation(node).stack[:MOST])
            return


def _is_0(graph: Graph, node: Node) -> bool:
    """Whether an operation turns the token's value into 0, outside of a gradient.

    Operations on a part of a larger tensor do not count, as they may rightly leave out the value.
    """
    operation = graph.operation(node)
    size = operation.contents.size
    has_value = any(
        graph.painted.get(one) is False and graph.operation(one).contents.size <= size
        for one in graph.inputs(node)
    )
    others = (*ALLOCATIONS, *COMPARING, *MOVING)
    is_other = operation.name.startswith(others) or not size
    is_forward = operation.backward_pass is None
    return has_value and is_forward and node not in graph.painted and not is_other


def _lacking(graph: Graph, holder: int, job: TracedJob) -> int | None:
    """A rank that lacks the value while another rank has it; None if no rank's gradient has it."""
    if job.logged is not None:
        return None if job.rank == holder else job.rank
    having = {node.rank for node in graph.ends}
    others = (rank for rank in range(len(graph.traces)) if rank not in having)
    return next(others, None) if having else None


def _not_shared(
    graph: Graph, way: Sequence[Node], lacking: int, package: str | None
) -> Iterator[Suspect]:
    """Yield the lines of the last reduction without a rank, after the line that chose its group.

    If no line of the reducing function chose the group, the first is the line that made the group.
    """
    for node in reversed(way):
        operation = graph.operation(node)
        collective = operation.collective
        if collective is None or collective.is_message or lacking in collective.group:
            continue
        ranks = f"{len(collective.group)} of {len(graph.traces)} ranks"
        words = f"reduces over {ranks}, and rank {lacking} lacks the value of the token"
        chooser = chosen_by(operation.stack, "group")
        made_by = [line for line in collective.made_by if is_own(line, package)][:1]
        lines = [*(made_by if chooser is None else [chooser]), *operation.stack]
        yield from (Suspect(line, words) for line in lines[:MOST])
        return


def _moved(graph: Graph, way: Sequence[Node]) -> Iterator[Suspect]:
    """Yield the lines that cut or move rows in the backward pass, if they misplace the gradient.

    If the token's gradient was selected by a mask, gradients of other tokens are no longer visible,
    so the lines of the whole backward pass are considered.
    """
    words = "moves tokens, and the gradient of this one goes to another"
    ways = [node for end in islice(graph.ends, 1) for node in chain(graph, end).way]
    after = (node for end in way[-1:] for node in graph.readers(end))
    is_selected = any(graph.selects(one) for node in after for one in graph.inputs(node))
    for node in graph.nodes() if is_selected else ways:
        operation = graph.operation(node)
        if operation.backward_pass is not None and operation.name.startswith(MOVING):
            yield from (Suspect(line, words) for line in operation.stack[:1])


def _last(graph: Graph, way: Sequence[Node], most: int, package: str | None) -> Iterator[Suspect]:
    """Yield the lines that read the last node with the value, and the lines of the node itself.

    If these are an engine's, the innermost line of the framework on each stack follows.
    """
    if not way:
        return
    end = way[-1]
    readers = graph.readers(end)
    words = "no operation after this line holds the value of the token"
    is_read = graph.operation(end).name in (READ, LISTED)
    made = [one for one in graph.inputs(end) if is_read and one in graph.painted]
    stacks = [graph.operation(node).stack for node in (*readers, end, *made)]
    # The last node and the nodes that read it are equally near. Their own lines precede the lines
    # of callers.
    in_turn = [line for lines in zip_longest(*(one[:most] for one in stacks)) for line in lines]
    own = [line for one in stacks for line in [each for each in one if is_own(each, package)][:1]]
    yield from (Suspect(line, words) for line in (*in_turn, *own) if line is not None)


def _cut_off(graph: Graph, way: Sequence[Node]) -> Iterator[Suspect]:
    """Yield the lines that take a part without the value from the last tensor that holds it.

    Gradients are left out, since views of gradient buffers prove nothing.
    """
    words = "takes a part of a tensor without the value of the token"
    for end in (one for one in way[-1:] if not graph.painted[one]):
        cuts = (graph.traces[end.rank].cuts.get(node.place) for node in graph.readers(end))
        yield from (Suspect(line, words) for cut in cuts if cut for line in cut[:1])
