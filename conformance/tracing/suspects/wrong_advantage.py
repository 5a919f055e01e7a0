"""The lines that first compute, from a reward, a number that no right computation contains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.trace import LISTED, READ, SMALL
from conformance.tracing.graph import ALLOCATIONS, MOVING
from conformance.tracing.source import chosen_by
from conformance.tracing.suspects.lost import COMPARING, lost_after
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines
from conformance.tracing.wrong_weight import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Contents
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.rewards import TracedAdvantage

PARTIAL = (
    "aten.sum",
    "aten.cumsum",
    "aten.cat",
    "aten.stack",
    "aten.add",
    "python.",
    "c10d.",
    *MOVING,
)
"""Name prefixes of operations whose result may be a part of a right number."""

PRECISION = 1e-4
"""The largest relative difference from a right number after several roundings."""


def of_advantage(graph: Graph, job: TracedAdvantage, package: str | None) -> list[Suspect]:
    """At most three lines that compute a wrong number from the reward, or lose the reward."""
    if not job.observed and not graph.trained:
        return lost_after(graph, job, package)
    found = [*(_miscomputed(graph, job) if job.observed else _lost(graph, job))]
    own = [one for one in found if is_own(one.line, package)]
    return of_lines(own or found)


def _miscomputed(graph: Graph, job: TracedAdvantage) -> Iterator[Suspect]:
    """Yield the lines that first compute wrong numbers from the reward."""
    for node in _first_wrong(graph, job):
        yield from _at(graph, node)


def _at(graph: Graph, node: Node) -> Iterator[Suspect]:
    """Yield the lines that made a wrong number.

    If a part of it was reduced over only some ranks, the line that chose the ranks and the lines
    of the reduction come first.
    """
    operation = graph.operation(node)
    for one in graph.inputs(node):
        collective, stack = graph.operation(one).collective, graph.operation(one).stack
        if collective is not None and len(collective.group) < len(graph.traces):
            words = f"reduces over {len(collective.group)} of {len(graph.traces)} ranks"
            chooser = chosen_by(stack, "group")
            lines = [*([] if chooser is None else [chooser]), *stack[:MOST]]
            yield from (Suspect(line, words) for line in lines)
    held = operation.contents.largest
    words = f"makes {held:.6g} of the reward, which no part of a right advantage is"
    yield from (Suspect(line, words) for line in operation.stack[:MOST])


def _lost(graph: Graph, job: TracedAdvantage) -> Iterator[Suspect]:
    """Yield the lines that turn the right advantage into 0."""
    words = f"makes 0 of the right advantage, {job.expected:.6g}"
    for node in (one for one in sorted(graph.nodes()) if _makes_0(graph, one, job.expected)):
        yield from (Suspect(line, words) for line in graph.operation(node).stack[:MOST])


def _makes_0(graph: Graph, node: Node, right: float) -> bool:
    """Whether an operation loses entries with the right advantage, outside of a gradient.

    Operations on a part of a larger tensor do not count, as they may rightly leave out entries.
    """
    operation = graph.operation(node)
    others = (*ALLOCATIONS, *COMPARING, *PARTIAL)
    if operation.backward_pass is not None or operation.name.startswith(others):
        return False
    before = (
        graph.operation(one).contents
        for one in graph.inputs(node)
        if graph.painted.get(one) is False
    )
    left = _entries(operation.contents, right)
    return any(
        one.size <= operation.contents.size and _entries(one, right) > left for one in before
    )


def _entries(contents: Contents, right: float) -> int:
    """The number of entries of a small tensor that have the size of the right advantage."""
    return sum(_is_close(one, abs(right)) for one in contents.values)


def _first_wrong(graph: Graph, job: TracedAdvantage) -> list[Node]:
    """The nodes on the way to the advantage that hold a wrong number computed from right ones.

    Partial sums count as right, since other parts may complete them.
    """
    numbers = _forward(graph)
    held = [node for node in numbers if _holds(graph, node, abs(job.observed))]
    wrong: set[Node] = set()
    first: list[Node] = []
    for node in sorted(graph.behind(held, numbers)):
        before = wrong.intersection(graph.inputs(node))
        if before:
            wrong.add(node)
        elif _is_wrong(graph, node, job):
            wrong.add(node)
            first.append(node)
    return first


def _forward(graph: Graph) -> frozenset[Node]:
    """The nodes computed from the reward, before the loss combines them with model outputs."""
    painted = (node for node, in_gradient in graph.painted.items() if not in_gradient)
    return frozenset(one for one in painted if not graph.operation(one).requires_grad)


def _holds(graph: Graph, node: Node, size: float) -> bool:
    """Whether a tensor has an entry of a size; a large tensor, whose entries are unknown, may."""
    contents = graph.operation(node).contents
    return contents.size > SMALL or any(_is_close(one, size) for one in contents.values)


def _is_close(entry: float, size: float) -> bool:
    return math.isclose(abs(entry), size, rel_tol=PRECISION)


def _is_wrong(graph: Graph, node: Node, job: TracedAdvantage) -> bool:
    """Whether a tensor holds a number, computed from the reward, that is not among the right ones.

    Only the largest entry of a large tensor is known.
    """
    operation = graph.operation(node)
    entries = operation.contents.values or (operation.contents.largest,)
    held = np.abs([one for one in entries if one and np.isfinite(one)])
    if operation.name.startswith(PARTIAL) or operation.name in (READ, LISTED) or not held.size:
        return False
    is_right = np.isclose(held[:, None], job.numbers[None, :], rtol=PRECISION, atol=1e-6)
    return not bool(is_right.any(axis=1).all())
