"""Shows which of a framework's statements is wrong, by runs with edited statements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conformance.tracing.edits.calls import called_otherwise
from conformance.tracing.edits.edited import changed_by
from conformance.tracing.edits.insertions import inserting
from conformance.tracing.edits.omissions import leaving_out
from conformance.tracing.edits.operations import done_otherwise
from conformance.tracing.edits.reductions import reduced_otherwise
from conformance.tracing.edits.statements import statements
from conformance.tracing.edits.values import read_alike, read_otherwise, read_unread
from conformance.tracing.graph import is_close
from conformance.tracing.suspects.reasons import Suspect, extent
from conformance.tracing.trials import ProofTimeOverError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract.job import Edit
    from conformance.tracing.edits.edited import Edited, Sort, Unit
    from conformance.tracing.edits.statements import Statement
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials
    from conformance.tracing.wrong_weight import WrongWeight

LIKELY = (read_unread, called_otherwise, done_otherwise, reduced_otherwise, read_alike)
"""Sorts of edits that are always tried, since each edit may be the intended statement."""

FURTHER = (leaving_out, inserting)
"""Sorts of edits that may also compensate for a mistake in another line."""

NEAREST = 12
"""The number of statements that are tried with all sorts of edits before any others are."""

MOST_BESIDE = 150
"""The most further edits in a function that are tried before one of its lines is proven."""


def edited_lines(trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun]) -> list[Suspect]:
    """The lines whose edit makes all findings conform; a line is proven if it is the only one.

    The statements nearest to the wrong number are tried with all sorts of edits before statements
    farther away. Leaving out or inserting a part may compensate for a mistake in another line, so
    such edits are tried only if no other edit helps. They are also tried if a sign is wrong, or a
    factor of ranks or micro-batches, since many lines can change these; no line is proven by such a
    factor, which is often 2. Before a line is proven, other statements of its function are tried;
    if the time does not suffice, no line is proven.

    Raises:
        ProofTimeOverError: no time was left to find an edit.
    """
    search, weight = _Search(trials, runs), trace.weight
    try:
        search.look_everywhere(statements(trace), weight)
    except ProofTimeOverError:
        if not search.found:
            raise
        return search.suspects("and other lines were not tried for want of time")
    is_proven = len(search.told) == 1 and not (weight is not None and weight.is_off_by_size)
    return search.suspects("" if is_proven else "as with a value elsewhere")


@dataclass(frozen=True)
class _Search:
    """Looks for edits with which all findings conform."""

    trials: Trials
    runs: Sequence[OrdinaryRun]
    found: dict[Unit, tuple[Statement, Edited]] = field(default_factory=dict)
    """The first edit of each statement with which all findings conform."""

    _likely: set[Unit] = field(default_factory=set)
    """The statements with a found edit of a likely sort."""

    _tried: set[Edit] = field(default_factory=set)

    @property
    def told(self) -> list[tuple[Statement, Edited]]:
        """The found edits, except edits that only avoid a variable which a likely one corrects."""
        return [
            (one, edited)
            for one, edited in self.found.values()
            if not any(
                other.is_beside(one) and edited.passed_by in changed_by(other.unit)
                for other, _ in self.found.values()
                if other is not one and other.unit in self._likely
            )
        ]

    def suspects(self, unless_proven: str) -> list[Suspect]:
        """The lines of the edits; they are proven if ``unless_proven`` is empty."""
        shown = extent(len(self.runs))
        return [
            Suspect(line, f"{edited.words}, {shown}, {unless_proven}")
            if unless_proven
            else Suspect(line, f"proven: {edited.words}, {shown}", f"what is right {edited.words}")
            for one, edited in self.told
            for line in [replace(one.line, number=edited.number)]
        ]

    def look_everywhere(self, several: Sequence[Statement], weight: WrongWeight | None) -> None:
        """Try all sorts of edits, of ever more statements until an edit helps.

        Raises:
            ProofTimeOverError: no time is left.
        """
        is_common = weight is not None and (is_close(weight.off, -1) or weight.is_off_by_size)
        for nearest in _nearest(several):
            self.look_at(nearest, LIKELY, self.trials.most_edited)
            if is_common or not self.found:
                self.look_at(nearest, FURTHER, self.trials.most_edited)
            if self.found:
                break
        else:
            self.look_at(several, [read_otherwise], self.trials.most_edited)
        for one, _ in self.told if len(self.told) == 1 else ():
            beside = [other for other in several if other.is_beside(one)]
            others = LIKELY if one.unit in self._likely else (*LIKELY, read_otherwise)
            self.look_at(beside, others, len(self._tried) + MOST_BESIDE)

    def look_at(self, several: Iterable[Statement], sorts: Iterable[Sort], most: int) -> None:
        """Try edits of some sorts, as long as fewer than ``most`` edits have been tried."""
        pairs = (
            (sort, one, edited) for sort in sorts for one in several for edited in one.edits(sort)
        )
        for sort, one, edited in (each for each in pairs if each[2].edit not in self._tried):
            if len(self._tried) >= most:
                return
            self._tried.add(edited.edit)
            if one.unit not in self.found and self._holds(edited.edit):
                self.found[one.unit] = one, edited
                self._likely.update([one.unit] if sort in LIKELY else [])

    def _holds(self, edit: Edit) -> bool:
        return all(self.trials.conforms(run, edit) for run in self.runs)


def _nearest(several: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    """Yield the nearest statements, then twice as many, and so on."""
    start, size = 0, NEAREST
    while start < len(several):
        yield several[start : start + size]
        start, size = start + size, 2 * size
