"""The lines after which a token's value is nowhere, or not on a rank that needs it."""

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
"""The beginnings of the names of operations that compare entries."""

HANDING_ON = ("aten.sum", "aten.add", "aten.cat", "aten.stack", "aten.index")
"""The beginnings of the names of operations that hand on or add up entries."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.tracing.graph import Graph
    from conformance.tracing.traced import TracedJob


def lost_after(graph: Graph, job: TracedJob, package: str | None) -> list[Suspect]:
    """At most three lines at which the value of a token is lost, the likeliest first.

    If another rank has it, these are the reductions that leave the lacking rank out, and where
    their group was chosen.
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
    """Yield what has the token's value outside of a gradient.

    What compares it has a truth instead, and what takes or adds up other entries than its own has
    less of it.
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
    """Yield the line on the way to a loss that makes 0 of the value, and who called it."""
    for node in sorted(() if graph.trained else graph.before_roots):
        if _is_0(graph, node):
            words = "makes 0 of the value of the token"
            yield from (Suspect(line, words) for line in graph.operation(node).stack[:MOST])
            return


def _is_0(graph: Graph, node: Node) -> bool:
    """Whether an operation leaves nothing of the token's value, outside of a gradient.

    One that reads or adds up a part of a larger tensor may do so without the value.
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
    """A rank that lacks the value which another one has; None if no rank ends with it."""
    if job.logged is not None:
        return None if job.rank == holder else job.rank
    having = {node.rank for node in graph.ends}
    others = (rank for rank in range(len(graph.traces)) if rank not in having)
    return next(others, None) if having else None


def _not_shared(
    graph: Graph, way: Sequence[Node], lacking: int, package: str | None
) -> Iterator[Suspect]:
    """Yield the last reduction on a way that leaves a rank out: who chose its group, and it.

    If no line of the function that reduces chose the group, the one that made it did.
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
    """Yield the lines that cut or move rows on the way to the gradient of other tokens, if any.

    Where the gradient of this token was selected, nothing is left of those of others.
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
    """Yield the lines that read the last operation which holds the value, and those of that.

    Where an engine does, the framework's own line that led there follows.
    """
    if not way:
        return
    end = way[-1]
    readers = graph.readers(end)
    words = "no operation after this line holds the value of the token"
    is_read = graph.operation(end).name in (READ, LISTED)
    made = [one for one in graph.inputs(end) if is_read and one in graph.painted]
    stacks = [graph.operation(node).stack for node in (*readers, end, *made)]
    # What reads the last operation and that itself are equally near: each before its callers.
    in_turn = [line for lines in zip_longest(*(one[:most] for one in stacks)) for line in lines]
    own = [line for one in stacks for line in [each for each in one if is_own(each, package)][:1]]
    yield from (Suspect(line, words) for line in (*in_turn, *own) if line is not None)


def _cut_off(graph: Graph, way: Sequence[Node]) -> Iterator[Suspect]:
    """Yield the lines that take a part of the last tensor with the value, but without that.

    Parts of buffers of gradients tell nothing.
    """
    words = "takes a part of a tensor without the value of the token"
    for end in (one for one in way[-1:] if not graph.painted[one]):
        cuts = (graph.traces[end.rank].cuts.get(node.place) for node in graph.readers(end))
        yield from (Suspect(line, words) for cut in cuts if cut for line in cut[:1])
