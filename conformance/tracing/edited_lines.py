"""Shows by runs which statement of a framework's own is not the one that was meant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from conformance.tracing.edits import changed_by, done_otherwise, leaving_out, read_otherwise
from conformance.tracing.graph import is_close
from conformance.tracing.statements import statements
from conformance.tracing.suspects.reasons import Suspect, extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adapters.contract.job import Edit
    from conformance.tracing.edits import Edited, Unit
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.statements import Meant, Statement
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials

LIKELY = (done_otherwise, read_otherwise)
"""Edits that are all tried: each may be what was meant."""


def edited_lines(trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun]) -> list[Suspect]:
    """The lines whose edit makes all findings conform; one alone is proven.

    What is left out of a line may make good what another does wrong, so that it tells only where
    nothing else does; unless a sign is wrong, which many lines can change. Of the function of a
    line that is proven all statements have been tried.
    """
    several, weight = statements(trace), trace.weight
    search = _Search(trials, runs)
    for meant in LIKELY:
        search.look_at(several, meant, trials.most_edited)
    is_sign = weight is not None and is_close(weight.off, -1)
    if is_sign or not search.found:
        search.look_at(several, leaving_out, trials.most_edited)
    for one, _ in search.told if len(search.told) == 1 else ():
        for meant in LIKELY:
            search.look_at([other for other in several if other.is_beside(one)], meant)
    is_alone, findings = len(search.told) == 1, len(runs)
    return [_told(*found, findings, is_alone=is_alone) for found in search.told]


@dataclass(frozen=True)
class _Search:
    """Looks for edits with which all findings conform."""

    trials: Trials
    runs: Sequence[OrdinaryRun]
    found: dict[Unit, tuple[Statement, Edited]] = field(default_factory=dict)
    """The first such edit of each statement."""

    _tried: set[Edit] = field(default_factory=set)

    @property
    def told(self) -> list[tuple[Statement, Edited]]:
        """The edits without those that only pass by the variable which another one mends."""
        return [
            (one, edited)
            for one, edited in self.found.values()
            if not any(
                other.is_beside(one) and edited.passed_by in changed_by(other.unit)
                for other, _ in self.found.values()
                if other is not one
            )
        ]

    def look_at(self, several: Iterable[Statement], meant: Meant, most: int | None = None) -> None:
        """Try edits of one sort, at most so many."""
        pairs = ((one, edited) for one in several for edited in one.edits(meant))
        fresh = (pair for pair in pairs if pair[1].edit not in self._tried)
        for one, edited in islice(fresh, most):
            self._tried.add(edited.edit)
            if one.unit not in self.found and self._holds(edited.edit):
                self.found[one.unit] = one, edited

    def _holds(self, edit: Edit) -> bool:
        return all(self.trials.conforms(run, edit) for run in self.runs)


def _told(statement: Statement, edited: Edited, findings: int, *, is_alone: bool) -> Suspect:
    line, shown = replace(statement.line, number=edited.number), extent(findings)
    if is_alone:
        return Suspect(line, f"proven: {edited.words}, {shown}", f"what is right {edited.words}")
    return Suspect(line, f"{edited.words}, {shown}, as with a value elsewhere")
