"""Proves which line is a cause, by runs in which the line computes with the needed values.

A line is proven if all findings of its cause conform in its own run, and in the run of no other
line.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from adapters.contract.job import Operand
from conformance.tracing.edits.search import edited_before, edited_lines
from conformance.tracing.hypotheses import (
    Hypothesis,
    hypotheses,
)
from conformance.tracing.placed import (
    counts_placed,
    is_close,
    moves,
)
from conformance.tracing.right_counts import NO_FACTOR, WHOLE, counts_of_step, is_product
from conformance.tracing.right_values import (
    PARTS,
    counts_of_parts,
    left_out,
    ordered_as,
)
from conformance.tracing.suspects.reasons import Suspect, extent, of_lines
from conformance.tracing.trials import ProofTimeOverError, Trials
from conformance.tracing.undone import NO_CHANGES
from conformance.tracing.unused import unused_count, unused_product

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from adapters.contract.job import Replacement
    from conformance.plan.matrix import MatrixCell
    from conformance.runs.jobs import SharedJobs
    from conformance.tracing.graph import Graph
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.right_values import Entries, LeftOut, OfRanks
    from conformance.tracing.trace import Trace
    from conformance.tracing.undone import Changes

    _Named = tuple[Hypothesis, str]
    """A hypothesis with which findings conform, and the name of the needed value."""

MOST_TRIED = 12
"""The most hypotheses that are tried for a cause."""

MOST_SHARES = 3
"""The most parts into which the remaining time is divided; a cause may take one part."""

MOST_EDITED = 4000
"""The most edits that are tried if no value proves a line."""

MOST_SHOWN = 4
"""The most further findings of a cause that must conform to prove a line."""

SHARE_OF_RUN = 1 / 5
"""The share of a run's own time that all of its proofs may take by default."""

LEAST_SECONDS = 20.0
"""The time that all proofs of a short run may take by default."""

UNUSED = "which this line makes and nothing uses"


TIMES_WITH_BASE = 3
"""The factor of the default time for a version with a base, for which more is tried."""


def default_seconds(of_run: float, changes: Changes = NO_CHANGES) -> float:
    """The time that all proofs may take at the end of a run, given the time of the run."""
    times = TIMES_WITH_BASE if changes.hunks else 1
    return times * max(LEAST_SECONDS, SHARE_OF_RUN * of_run)


class Prover:
    """Tries hypotheses about the lines of causes on their findings, for ``seconds`` in total.

    Each cause may take a third of the remaining time, or more if fewer than three causes remain.
    """

    def __init__(
        self,
        jobs: SharedJobs,
        most_edited: int = MOST_EDITED,
        *,
        seconds: float = math.inf,
        changes: Changes = NO_CHANGES,
    ) -> None:
        self.trials = Trials(jobs, most_edited)
        self._changes = changes
        self._left = seconds
        self.given_up: set[str] = set()
        """The traced findings for whose lines no time was left."""

    def proven(self, trace: Trace, cells: Sequence[MatrixCell], others: int = 0) -> list[Suspect]:
        """The suspected lines, beginning with lines where another value makes the findings conform.

        The first of ``cells`` is the traced cell; ``others`` is the number of causes still to come.
        If a value and its parts all make the findings conform, the innermost part is proven. No
        line is proven if independent values at several lines make them conform. A weight that is
        off by the number of ranks or micro-batches can be corrected at any line, unless it is as
        wrong on one rank in one micro-batch. For such a weight only suspected lines are tried, and
        a line is proven only if it makes the needed value and nothing uses that value. If the time
        is over, no line is proven, as the innermost part may not have been tried.
        """
        with self._timed(trace.finding, others):
            if runs := self._unchanged(cells):
                alone = self.trials.wrong_alone(cells[0]) if _is_off_by_size(trace) else None
                of_size = _is_off_by_size(trace) and alone is None
                first, *further = runs
                further += [] if alone is None else [alone]
                return _Proof(self.trials, trace, trace.graph, first, further, of_size).lines()
        return trace.suspects

    def changed(self, trace: Trace, cells: Sequence[MatrixCell], others: int = 0) -> list[Suspect]:
        """The suspected lines, beginning with changes of the version that are proven.

        The list is empty if no change is proven; see `Changes.proven`.
        """
        with self._timed(trace.finding, others):
            runs = self._unchanged(cells) if self._changes.hunks else []
            found = self._changes.proven(self.trials, trace, runs) if runs else []
            return of_lines([*found, *trace.suspects]) if found else []
        return []

    @contextmanager
    def _timed(self, finding: str, others: int) -> Iterator[None]:
        """A context that is left early once a cause has used its share of the time."""
        begin = time.monotonic()
        self.trials.until = begin + self._left / min(1 + others, MOST_SHARES)
        try:
            yield
        except ProofTimeOverError:
            self.given_up.add(finding)
        finally:
            self._left -= time.monotonic() - begin

    def _unchanged(self, cells: Sequence[MatrixCell]) -> list[OrdinaryRun]:
        """The unchanged runs of a cause's first findings; empty if the first does not run."""
        first = self.trials.ordinary(cells[0])
        if first is None:
            return []
        further = filter(None, map(self.trials.ordinary, cells[1:]))
        return [first, *islice(further, MOST_SHOWN)]


@dataclass
class _Proof:
    """Tries the hypotheses about the lines of one trace on the findings of its cause."""

    trials: Trials
    trace: Trace
    graph: Graph
    first: OrdinaryRun
    """The unchanged run of the traced finding."""

    others: list[OrdinaryRun]
    is_of_size: bool
    """Whether the weight may be off by the number of ranks or micro-batches."""

    _held: dict[Hypothesis, Entries] = field(default_factory=dict)
    """The values that each hypothesis would replace, in the traced finding."""

    _right: set[Hypothesis] = field(default_factory=set)
    """Hypotheses on values that are right counts of parts of a step."""

    _left_out: dict[Hypothesis, LeftOut] = field(default_factory=dict)
    """For hypotheses on values that count only some parts of a step, the parts left out."""

    def lines(self) -> list[Suspect]:
        """The suspected lines of the trace, proven lines first."""
        shown = self._shown()
        unused, findings = [*self._unused(shown)], 1 + len(self.others)
        is_alone = len({one.line for one, _ in shown}) == 1 and not self.is_of_size
        is_proven = is_alone and all(self._tells(*named) for named in shown)
        said = _proven if is_proven or unused else _made_good
        found = [said(one, name, findings) for one, name in unused[:1] or shown]
        if is_proven and not unused:
            found = self._edited_before(shown[0][0]) or found
        if said is _made_good:
            edited = self._edited(has_others=bool(found))
            found = edited if any(one.instead for one in edited) else [*found, *edited]
        return of_lines([*self._unused_factor(), *found, *self.trace.suspects])

    def _shown(self) -> list[_Named]:
        """The hypotheses that hold and are shown, each with the name of its value."""
        if self.is_of_size:
            return self._made_good()
        return [*map(self._placed_at_parts, self._innermost())]

    def _candidates(self) -> list[Hypothesis]:
        own = {one.line for one in self.trace.suspects if self.trace.is_own(one.line)}
        return [one for one in candidates(self.trace) if not self.is_of_size or one.line in own]

    def _tells(self, one: Hypothesis, name: str) -> bool:
        """Whether a value proves a line, if it is the only line with such a value.

        A single number in a single finding is too weak, as another line could have it by chance. A
        product or quotient may undo the mistake of another line. An engine's line, and a line that
        only reads a Python number, got the number from elsewhere.
        """
        is_of_several = bool(self.others) or one.needed is None
        is_own = self.trace.is_own(one.line)
        return is_of_several and is_own and not is_product(name) and not one.is_handed

    def _edited(self, *, has_others: bool) -> list[Suspect]:
        """The lines whose edit makes all findings conform; none if there was no time to look."""
        try:
            runs = [self.first, *self.others]
            return edited_lines(self.trials, self.trace, runs, is_of_size=self.is_of_size)
        except ProofTimeOverError:
            if not has_others:
                raise
            return []

    def _edited_before(self, one: Hypothesis) -> list[Suspect]:
        """The line that makes an operand of a proven line wrong; none if there was no time."""
        try:
            return edited_before(self.trials, self.trace, [self.first, *self.others], one.node)
        except ProofTimeOverError:
            return []

    def _unused_factor(self) -> Iterator[Suspect]:
        weight = self.trace.weight
        if weight is not None and weight.off and (line := unused_product(self.graph, weight.off)):
            words = f"multiplies by {1 / weight.off:.6g}, which the weight lacks"
            yield Suspect(line, f"{words}, and nothing uses it")

    def _unused(self, shown: Iterable[_Named]) -> Iterator[_Named]:
        """Yield hypotheses on lines that make a needed value of ``shown`` that nothing uses."""
        for one, name in shown:
            ratio = one.needed / one.had if one.needed and one.had else 1.0
            line = unused_count(self.graph, one.node, ratio) if ratio != 1 else None
            if line is not None:
                yield replace(one, line=line, reason=UNUSED), name

    def _placed_at_parts(self, named: _Named) -> _Named:
        """The hypothesis, moved to the line that leaves out parts of the count, if there is one."""
        one, name = named
        for part, lacking in self._left_out.items():
            is_of_rank = one.needed is None
            had = sum(map(sum, chain(*self._held[one]))) if is_of_rank else one.had
            needed = lacking.right if is_of_rank else one.needed
            is_sum = lacking.makes(had, needed) and not is_product(name)
            if is_sum and not part.is_handed and one.is_made_of(part, self.graph):
                return replace(part, had=one.had, needed=one.needed, reason=lacking.words), name
        return named

    def _made_good(self) -> list[_Named]:
        """The hypotheses that hold, each with the name of its value."""
        tried = islice(self._candidates(), MOST_TRIED)
        return [(one, name) for one in tried if (name := self._name(one)) is not None]

    def _innermost(self) -> list[_Named]:
        """The hypotheses that hold; of a value and its parts, only those on the innermost part.

        Hypotheses with a count of the reference come first. A product or quotient of counts, or the
        whole divisor, may only undo the mistake of another line.
        """
        plain: dict[Hypothesis, str] = {}
        products: dict[Hypothesis, str] = {}
        for one in islice(self._candidates(), MOST_TRIED):
            outer = (each for each in plain if each not in self._right)
            if any(one.is_made_of(each, self.graph) for each in outer):
                continue
            if any(map(one.is_of_all, plain)):
                continue
            if (name := self._name(one)) is not None:
                shown = products if is_product(name) or name == WHOLE else plain
                not_to_blame = [self._not_to_blame(one, each) for each in shown]
                shown[one] = name
                for each in filter(None, not_to_blame):
                    shown.pop(each, None)
        return [*(plain or products).items()]

    def _not_to_blame(self, one: Hypothesis, other: Hypothesis) -> Hypothesis | None:
        """The hypothesis to drop of two, if one's value is made of the other's; else None.

        The outer one is dropped, unless its line makes a wrong count of an inner right count.
        """
        if other.is_made_of(one, self.graph):
            return one if self._miscounts(other, one) else other
        if one.is_made_of(other, self.graph):
            return other if self._miscounts(one, other) else one
        return None

    def _miscounts(self, outer: Hypothesis, inner: Hypothesis) -> bool:
        is_made = outer.replacement.operand is Operand.RESULT
        is_other = self._held.get(outer) != self._held.get(inner)
        return is_made and is_other and inner in self._right

    def _name(self, one: Hypothesis) -> str | None:
        """The name of the value with which all findings conform; None if there is none.

        The name is also None if the line has the value on purpose, and another line misuses it.
        """
        counts = counts_of_step(self.first.contexts[0])
        names = {
            name: replaced
            for name, replaced in self._needed(one, self.first).items()
            if not (one.needed and name in counts and not is_close(counts[name], one.needed))
        }
        shown = self._conforming(names, self.first)
        for run in self.others:
            if not shown:
                return None
            needed = self._needed(one, run)
            shown = self._conforming({name: needed[name] for name in shown if name in needed}, run)
        return None if not shown or self._is_meant(one, shown[0]) else shown[0]

    def _conforming(self, needed: Mapping[str, Replacement], run: OrdinaryRun) -> list[str]:
        """The names of the values with which a finding conforms."""
        tried = {one: self.trials.conforms(run, one) for one in {*needed.values()}}
        return [name for name, replaced in needed.items() if tried[replaced]]

    def _is_meant(self, one: Hypothesis, name: str) -> bool:
        """Whether a line's value is right, since runs in other modes use it and conform."""
        if self.first.cell.spec.metric is not None:
            return False
        of_modes = self.trials.right_in_other_modes(self.first.cell)
        return any(self._is_right(one, name, run) for run in of_modes)

    def _is_right(self, one: Hypothesis, name: str, run: OrdinaryRun) -> bool:
        """Whether a conforming run depends on a line's value, though it is not the named count."""
        needed = self._needed(one, run)
        if name in needed:
            return not self.trials.conforms(run, needed[name])
        ran = self.trials.ran(run, replaced=one.replacement)
        if ran is None:
            return False
        marked = self.trials.weights(run.cell, ran.observations)
        return name not in counts_placed(run, ran.held, marked) and moves(run, ran.held, marked)

    def _needed(self, one: Hypothesis, run: OrdinaryRun) -> Mapping[str, Replacement]:
        """The replacements of a line's value by the reference's counts, by the counts' names."""
        is_marked = one.needed is not None and run.cell.spec.metric is None
        entries = None if is_marked else ()
        ran = self.trials.ran(run, replaced=replace(one.replacement, entries=entries))
        if ran is None:
            return {}
        parts = counts_of_parts(run.contexts[0], ran.observations)
        self._note(one, ran.held, parts)
        of_parts = found = ordered_as(ran.held, parts)
        if is_marked:
            placed = counts_placed(run, ran.held, self.trials.weights(run.cell, ran.observations))
            # Counts of parts on one rank may equal those of the step.
            same = {name: each for name, each in of_parts.items() if each in placed.values()}
            found = {**placed, **same} if placed else of_parts  # summed marks have no place
        return {name: replace(one.replacement, entries=each) for name, each in found.items()}

    def _note(self, one: Hypothesis, held: Entries, counts: Mapping[str, OfRanks]) -> None:
        """Remember a line's values in the first finding, and the parts that they count or lack."""
        if self._held.setdefault(one, held) is held:
            parts = {name: counts[name] for name in PARTS if name in counts}
            self._right.update([one] if held in ordered_as(held, parts).values() else [])
            lacking = [left_out(held, of_ranks) for of_ranks in parts.values()]
            if (found := next(filter(None, lacking), None)) is not None:
                self._left_out[one] = found


def candidates(trace: Trace) -> list[Hypothesis]:
    """The hypotheses to try for a trace, best first."""
    return [] if trace.job.is_of_all else [*hypotheses(trace)]


def _is_off_by_size(trace: Trace) -> bool:
    return trace.weight is not None and trace.weight.is_off_by_size


def _proven(one: Hypothesis, name: str, findings: int) -> Suspect:
    """The suspect for a proven line."""
    meant = f"{one.had:.6g} where {_count(one, name)} is meant"
    return Suspect(one.line, f"proven: {_shown(one, name, findings)}", meant)


def _made_good(one: Hypothesis, name: str, findings: int) -> Suspect:
    """The suspect for a line at which another value makes findings conform, but not only there."""
    return Suspect(one.line, f"{_shown(one, name, findings)}, as with a value elsewhere")


def _shown(one: Hypothesis, name: str, findings: int) -> str:
    reason = f", {one.reason}" if one.reason else ""
    return f"with {_count(one, name)} instead of {one.had:.6g}{reason}, {extent(findings)}"


def _count(one: Hypothesis, name: str) -> str:
    value = f"{one.needed:g} ({name})" if one.needed else name
    return "1" if name == NO_FACTOR else value
