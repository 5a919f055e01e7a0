"""Shows which of a framework's statements is wrong, by runs with edited statements."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from conformance.ranks.side_by_side import SideBySide
from conformance.tracing.edits.calls import called_otherwise
from conformance.tracing.edits.edited import changed_by
from conformance.tracing.edits.elsewhere import written_elsewhere
from conformance.tracing.edits.insertions import adding, detaching, inserting, scaling
from conformance.tracing.edits.omissions import leaving_out
from conformance.tracing.edits.operations import done_otherwise, done_twice
from conformance.tracing.edits.reductions import reduced_otherwise
from conformance.tracing.edits.statements import statements
from conformance.tracing.edits.values import read_alike, read_otherwise, read_unread
from conformance.tracing.source import function_at
from conformance.tracing.suspects.reasons import Suspect, extent
from conformance.tracing.trials import OneByOne, ProofTimeOverError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from adapters.contract.job import Edit
    from conformance.findings.trace import Line
    from conformance.tracing.edits.edited import Edited, Sort, Unit
    from conformance.tracing.edits.statements import Statement
    from conformance.tracing.graph import Graph, Node
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials, Tried

    Place = tuple[str, int]
    """A file and the first line of a function in it."""

LIKELY = (read_unread, called_otherwise, done_otherwise, reduced_otherwise, read_alike)
"""Sorts of edits that may be the intended statement; other edits may only offset a mistake."""

READING = (read_unread, read_alike, read_otherwise)
"""Sorts of edits that read another value, and change no operation."""

COSTS = {
    read_unread: -1.0,
    **dict.fromkeys((called_otherwise, done_otherwise, reduced_otherwise, read_alike), 0.0),
    written_elsewhere: 1.5,
    leaving_out: 1.0,
    detaching: 1.0,
    scaling: 2.0,
    adding: 2.0,
    inserting: 2.0,
    read_otherwise: 2.0,
    done_twice: 3.0,
}
"""The costs of edits by sort.

A cost higher by 1 delays an edit as if its line were twice as far away. In 38 of 69 traced mistakes
in frameworks' code, the edit that undoes the mistake was among the first 300 in this order, and in
28 if all sorts of edits of the nearest statements came first.
"""

COST_OF_NEXT = 0.1
"""The cost by which an edit exceeds the previous edit of the same statement and sort."""

COST_OF_UNMOVED = 0.5
"""The cost that each tried edit of a statement adds to the statement's next edits, as long as none
of them changes a number. Such a statement may have no influence on the wrong number."""

NEAREST = 8
"""The number of nearest statements that are about equally likely to be wrong."""

MOST_BEYOND = 100
"""The most further edits that are tried after the first edit which helps."""

MOST_CASES = 8
"""The most further cases that must conform if edits of several lines help."""

MOST_ELSEWHERE = 20
"""The most losses and estimators whose findings must still conform if an edit helps."""

MOST_BEFORE = 60
"""The most edits of near lines that are tried once a value proves a line."""

FURTHEST_BEFORE = 3
"""The most operations between a proven line and the lines before it whose edits are tried."""

MOST_BESIDE = 150
"""The most further edits in a function that are tried before one of its lines is proven."""


def edited_lines(
    trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun], *, is_of_size: bool
) -> list[Suspect]:
    """The lines whose edit makes all findings conform; a line is proven if it is the only one.

    The likeliest edits of the statements nearest to the wrong number are tried first. If the weight
    ``is_of_size``, off by the number of ranks or micro-batches, many lines can change that factor,
    so only an edit that reads another value proves a line. Before a line is proven, edits
    that are nearly as likely are tried, and other statements of its function; if the time does not
    suffice, no line is proven.

    Raises:
        ProofTimeOverError: no time was left to find an edit.
    """
    if not trials.most_edited:
        return []
    several, suspected = statements(trace), {function_at(one.line) for one in trace.suspects}
    with SideBySide(trials.jobs.pool, runs[0].cell.layout.world_size) as ranks:
        search = _Search(trials, runs, ranks)
        try:
            search.look_everywhere(several, suspected)
        except ProofTimeOverError:
            if not search.found:
                raise
            return search.suspects("and other lines were not tried for want of time")
    is_proven = len(search.told) == 1 and (search.reads_another or not is_of_size)
    return search.suspects("" if is_proven else "as with a value elsewhere")


def edited_before(
    trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun], node: Node
) -> list[Suspect]:
    """The line that makes an operand of a proven operation wrong, if an edit shows that.

    With a likely edit of this line, and of no other near line, all findings conform. The result is
    empty if no line, or the line of the operation itself, has such an edit.

    Raises:
        ProofTimeOverError: no time is left.
    """
    if not trials.most_edited:
        return []
    at = {*_lines(trace.graph, [node])}
    lines = at | {*_lines_before(trace.graph, node)}
    near = [one for one in statements(trace) if any(map(one.is_at, lines))]
    search = _Search(trials, runs, OneByOne(trials))
    search.look_at_likely(near)
    found = [one for one, _ in search.told]
    is_before = len(found) == 1 and not any(map(found[0].is_at, at))
    return search.suspects("") if is_before else []


def _lines_before(graph: Graph, node: Node) -> Iterator[Line]:
    """Yield the lines of the operations that make a node's operands, a few operations back."""
    nodes = [node]
    for _ in range(FURTHEST_BEFORE):
        nodes = [one for each in nodes for one in graph.inputs(each)]
        yield from _lines(graph, nodes)


def _lines(graph: Graph, nodes: Iterable[Node]) -> Iterator[Line]:
    return filter(None, (graph.operation(one).line for one in nodes))


class _RankedEdit(NamedTuple):
    """An edit that may be the intended statement."""

    cost: float
    sort: Sort
    statement: Statement
    edited: Edited


@dataclass(frozen=True)
class _Search:
    """Looks for edits with which all findings conform."""

    trials: Trials
    runs: Sequence[OrdinaryRun]
    ranks: SideBySide | OneByOne
    found: dict[Unit, tuple[Statement, Edited]] = field(default_factory=dict)
    """The first edit of each statement with which all findings conform."""

    _sorts: dict[Unit, Sort] = field(default_factory=dict)
    """The sort of each statement's found edit."""

    _logs: dict[Unit, int] = field(default_factory=dict)
    """The number of logged numbers that each statement's found edit changes."""

    _unmoved: Counter[Unit] = field(default_factory=Counter)
    """The number of tried edits of each statement, if none of them changes a number."""

    _moved: set[Unit] = field(default_factory=set)
    """The statements with an edit that changes a number."""

    _tried: set[Edit] = field(default_factory=set)
    _further: list[OrdinaryRun] = field(default_factory=list)
    """Runs in other cases that tell edits apart, and must conform as well."""

    @property
    def told(self) -> list[tuple[Statement, Edited]]:
        """The found edits that count.

        An unlikely edit does not count beside a likely one, nor does an edit that only avoids a
        variable which a likely edit corrects, or that changes more logged numbers than another.
        """
        fewest = min(self._logs.values(), default=0)
        return [
            (one, edited)
            for one, edited in self.found.values()
            if self._counts(self._sorts[one.unit])
            and self._logs[one.unit] == fewest
            and not any(
                other.is_beside(one) and edited.passed_by in changed_by(other.unit)
                for other, _ in self.found.values()
                if other is not one and self._sorts[other.unit] in LIKELY
            )
        ]

    @property
    def reads_another(self) -> bool:
        """Whether all found edits that count read another value."""
        return all(self._sorts[one.unit] in READING for one, _ in self.told)

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

    def look_everywhere(self, several: Sequence[Statement], suspected: Set[Place]) -> None:
        """Try edits of all statements until one helps, then edits that are nearly as likely.

        Raises:
            ProofTimeOverError: no time is left.
        """
        edits = iter(filter(self._is_untried, self._likeliest(several, suspected)))
        any(self._look_at(islice(edits, self.trials.most_edited)))
        if self.found:
            self._look_at_all(islice(edits, MOST_BEYOND))
        for found, _ in self.told if len(self.told) == 1 else ():
            beside = [other for other in several if other.is_beside(found)]
            further = filter(self._is_untried, self._likeliest(beside))
            self._look_at_all(islice(further, MOST_BESIDE))
        if len(self.told) > 1:
            self._look_at_other_cases()

    def look_at_likely(self, several: Sequence[Statement]) -> None:
        """Try likely edits of statements.

        Raises:
            ProofTimeOverError: no time is left.
        """
        likely = (one for one in self._likeliest(several) if one.sort in LIKELY)
        self._look_at_all(islice(filter(self._is_untried, likely), MOST_BEFORE))

    def _look_at_other_cases(self) -> None:
        """Find cases that tell the found edits apart, until only one edit is left.

        Other edits of a statement whose edit fails in a case must conform in that case, too.
        """
        for run in islice(self.trials.runs_of_other_cases(self.runs), MOST_CASES):
            found = [*self.found.values()]
            failing = [one for one, edited in found if not self.trials.conforms(run, edited.edit)]
            if 0 < len(failing) < len(found):
                self._further.append(run)
                for one in failing:
                    del self.found[one.unit], self._sorts[one.unit], self._logs[one.unit]
                others = filter(self._is_untried, self._likeliest(failing))
                self._look_at_all(islice(others, MOST_BESIDE))
            if len(self.told) == 1:
                return

    def _is_untried(self, one: _RankedEdit) -> bool:
        return one.edited.edit not in self._tried and self._is_wanted(one)

    def _is_wanted(self, one: _RankedEdit) -> bool:
        """Whether an edit is worth trying: its sort counts, and its statement has no found edit."""
        return self._counts(one.sort) and one.statement.unit not in self.found

    def _counts(self, sort: Sort) -> bool:
        """Whether edits of a sort count.

        Unlikely edits do not count once a likely edit is found, unless the likely edit only reads a
        variable with a similar name.
        """
        sure = (one in LIKELY and one is not read_alike for one in self._sorts.values())
        return sort in LIKELY or not any(sure)

    def _look_at_all(self, several: Iterable[_RankedEdit]) -> None:
        for _ in self._look_at(several):
            pass

    def _look_at(self, several: Iterable[_RankedEdit]) -> Iterator[bool]:
        """Try edits, several at a time, and yield for each whether all findings conform."""
        begun: dict[Edit, _RankedEdit] = {}

        def edits() -> Iterator[Edit]:
            for one in several:
                self._tried.add(one.edited.edit)
                begun[one.edited.edit] = one
                yield one.edited.edit

        for tried in self.trials.conforming(self.runs[0], edits(), self.ranks):
            one = begun.pop(tried.edit)
            self._note(one.statement.unit, tried)
            helps = tried.conforms and self._is_wanted(one) and self._suits_others(tried.edit)
            if helps:
                self.found[one.statement.unit] = one.statement, one.edited
                self._sorts[one.statement.unit] = one.sort
                self._logs[one.statement.unit] = tried.logs
            yield helps

    def _suits_others(self, edit: Edit) -> bool:
        """Whether the cause's other findings conform with an edit, and right findings still do."""
        others = (*self.runs[1:], *self._further, *self._elsewhere)
        return all(self.trials.conforms(run, edit) for run in others)

    @cached_property
    def _elsewhere(self) -> tuple[OrdinaryRun, ...]:
        """Conforming runs of other losses and estimators, which tell edits of shared code apart."""
        return tuple(islice(self.trials.right_elsewhere(self.runs[0]), MOST_ELSEWHERE))

    def _note(self, unit: Unit, tried: Tried) -> None:
        """Note whether an edit of a statement changes a number."""
        if tried.moves:
            self._moved.add(unit)
            del self._unmoved[unit]
        elif unit not in self._moved:
            self._unmoved[unit] += 1

    def _likeliest(
        self, several: Sequence[Statement], suspected: Set[Place] = frozenset()
    ) -> Iterator[_RankedEdit]:
        """Yield edits with their costs, the likeliest first.

        The cost of a statement is the logarithm of its place; statements in a function with a
        suspected line are as likely as others that are half as far away. The costs of statements
        whose edits change no number grow as edits are tried.
        """
        numbers, waiting = count(), []
        for place, one in enumerate(several, NEAREST):
            of_statement = math.log2(place) - (function_at(one.line) in suspected)
            unmoved = self._unmoved[one.unit]
            waiting += [
                (of_statement + cost, next(numbers), unmoved, sort, one, one.edits(sort))
                for sort, cost in COSTS.items()
            ]
        heapify(waiting)
        while waiting:
            cost, number, seen, sort, one, edits = heappop(waiting)
            unmoved = self._unmoved[one.unit]
            later = COST_OF_UNMOVED * (unmoved - seen)
            if later > 0:
                heappush(waiting, (cost + later, number, unmoved, sort, one, edits))
                continue
            for edited in islice(edits, 1):
                yield _RankedEdit(cost, sort, one, edited)
                heappush(waiting, (cost + COST_OF_NEXT, number, unmoved, sort, one, edits))
