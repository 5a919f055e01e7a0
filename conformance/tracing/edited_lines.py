"""Shows by runs which statement of a framework's own is not the one that was meant."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from conformance.tracing.edits import done_otherwise, leaving_out, read_otherwise
from conformance.tracing.graph import is_close
from conformance.tracing.statements import statements
from conformance.tracing.suspects.reasons import Suspect, extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.tracing.edits import Edited
    from conformance.tracing.graph import Graph
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.statements import Meant, Statement
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials

    Held = tuple[Statement, Edited]
    """A statement, and its first edit with which all findings conform."""

MOST_EDITED = 100
"""Edits of each sort that are tried."""

OTHERS = (read_otherwise, leaving_out)
"""Edits that are tried where the likelier ones prove nothing."""


def edited_lines(trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun]) -> list[Suspect]:
    """The lines whose edit makes all findings conform; one alone is proven.

    What is done otherwise with a value can be undone where that is used, so that the innermost of
    several lines is meant. Another variable may be meant in any of them, and what is left out of
    one line may make good what another lacks. A sign can be changed anywhere.
    """
    assert trace.graph is not None
    several, weight = statements(trace), trace.weight
    found = _holding(trials, several, done_otherwise, runs)
    is_sign = weight is not None and is_close(weight.off, -1)
    found = found if is_sign else _innermost(found, trace.graph)
    for meant in OTHERS:
        if is_sign or not found:
            found += _holding(trials, several, meant, runs)
    return [_told(one, edited, len(runs), is_alone=len(found) == 1) for one, edited in found]


def _holding(
    trials: Trials, several: Sequence[Statement], meant: Meant, runs: Sequence[OrdinaryRun]
) -> list[Held]:
    """The statements of which an edit of one sort makes all findings conform."""
    found: dict[int, Held] = {}
    tried = {each.edit: (n, each) for n, one in enumerate(several) for each in one.edits(meant)}
    for place, edited in islice(tried.values(), MOST_EDITED):
        if place not in found and all(trials.conforms(run, edited.edit) for run in runs):
            found[place] = several[place], edited
    return [*found.values()]


def _innermost(found: Sequence[Held], graph: Graph) -> list[Held]:
    """The statements that make no value of what others make which hold as well."""
    behind = [graph.behind(one.nodes) for one, _ in found]

    def is_outer(place: int) -> bool:
        own = found[place][0].nodes
        return any(
            not behind[place].isdisjoint(other.nodes) and behind[each].isdisjoint(own)
            for each, (other, _) in enumerate(found)
        )

    return [one for place, one in enumerate(found) if not is_outer(place)]


def _told(statement: Statement, edited: Edited, findings: int, *, is_alone: bool) -> Suspect:
    line, shown = replace(statement.line, number=edited.number), extent(findings)
    if is_alone:
        return Suspect(line, f"proven: {edited.words}, {shown}", f"what is right {edited.words}")
    return Suspect(line, f"{edited.words}, {shown}, as with a value elsewhere")
