"""Shows by runs which statement of a framework's own is not the one that was meant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from conformance.tracing.edits import changed_by, done_otherwise, leaving_out, read_otherwise
from conformance.tracing.graph import is_close
from conformance.tracing.statements import statements
from conformance.tracing.suspects.reasons import Suspect, extent
from conformance.tracing.trials import ProofTimeOverError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adapters.contract.job import Edit
    from conformance.tracing.edits import Edited, Unit
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.statements import Meant, Statement
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials
    from conformance.tracing.wrong_weight import WrongWeight

LIKELY = (done_otherwise, read_otherwise)
"""Edits that are all tried: each may be what was meant."""


def edited_lines(trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun]) -> list[Suspect]:
    """The lines whose edit makes all findings conform; one alone is proven.

    What is left out of a line may make good what another does wrong, so that it tells only where
    nothing else does; unless a sign is wrong, which many lines can change. Of the function of a
    line that is proven all statements have been tried. If time was over before, none is proven.

    Raises:
        ProofTimeOverError: no time was left to find an edit.
    """
    search = _Search(trials, runs)
    try:
        search.look_everywhere(statements(trace), trace.weight)
    except ProofTimeOverError:
        if not search.found:
            raise
        return search.suspects("and other lines were not tried for want of time")
    return search.suspects("" if len(search.told) == 1 else "as with a value elsewhere")


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

    def suspects(self, unless_proven: str) -> list[Suspect]:
        """The lines of the edits, proven unless something is to be said."""
        shown = extent(len(self.runs))
        return [
            Suspect(line, f"{edited.words}, {shown}, {unless_proven}")
            if unless_proven
            else Suspect(line, f"proven: {edited.words}, {shown}", f"what is right {edited.words}")
            for one, edited in self.told
            for line in [replace(one.line, number=edited.number)]
        ]

    def look_everywhere(self, several: Sequence[Statement], weight: WrongWeight | None) -> None:
        """Try edits of all sorts.

        Raises:
            ProofTimeOverError: no time is left.
        """
        for meant in LIKELY:
            self.look_at(several, meant, self.trials.most_edited)
        is_sign = weight is not None and is_close(weight.off, -1)
        if is_sign or not self.found:
            self.look_at(several, leaving_out, self.trials.most_edited)
        for one, _ in self.told if len(self.told) == 1 else ():
            for meant in LIKELY:
                self.look_at([other for other in several if other.is_beside(one)], meant)

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
