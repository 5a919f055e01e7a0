"""Shows by runs which line made a cause: with the values that it had to have, findings conform."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.formulas import ESTIMATORS
from adapters.contract.job import Operand
from conformance.tracing.edited_lines import edited_lines
from conformance.tracing.graph import Graph
from conformance.tracing.hypotheses import (
    Hypothesis,
    Values,
    hypotheses,
    operands,
    rewarded_lines,
)
from conformance.tracing.placed import (
    CLOSE,
    counts_placed,
    is_close,
    mask_placed,
    moves,
)
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.right_counts import NO_FACTOR, counts_of_step, is_product
from conformance.tracing.right_values import (
    PARTS,
    REWARD,
    counts_of_parts,
    left_out,
    ordered_as,
    rewarded,
)
from conformance.tracing.suspects.reasons import Suspect, extent, of_lines
from conformance.tracing.trials import ProofTimeOverError, Trials
from conformance.tracing.unused import unused_count, unused_product

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract.job import Replacement
    from conformance.findings.trace import Line
    from conformance.plan.matrix import MatrixCell
    from conformance.runs.jobs import SharedJobs
    from conformance.tracing.graph import Node
    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.right_values import Entries, LeftOut, OfRanks
    from conformance.tracing.trace import Trace

    _Named = tuple[Hypothesis, str]
    """A hypothesis that holds, with the name of the value that was needed."""

MOST_TRIED = 12
"""Hypotheses of a cause that are tried, on lines and on values of rewards."""

SHARE_OF_A_CAUSE = 1 / 3
"""The part of the time left that the proof of a cause may take."""

MOST_EDITED = 100
"""Edits of each sort that are tried where no value proves a line."""

MOST_SHOWN = 4
"""Further findings of a cause that a line must make right."""

MOST_NAMES = 4
"""Values of rewards that are tried at a line: the nearest to what it has."""

IN_ORDER = (Values.REWARDS, Values.RANKS)
"""Values of which the first that is proven is the one that others are made of."""

UNLESS_PROVEN = {
    Values.LATER: (Values.COUNTS, Values.MASK),
    Values.MASK: (Values.LATER,),
    Values.REWARDS: (*Values,),
}
"""Values that are tried only as long as none of others is proven."""

UNUSED = "which this line makes and nothing uses"

ALL_RANKS = "the sum over all ranks"
"""The name of the right result of a reduction."""


class Prover:
    """Tries hypotheses about the lines of causes on their findings, for some ``seconds`` in all.

    Each cause may take a part of what is left, so that one alone does not take all of it.
    """

    def __init__(
        self, jobs: SharedJobs, most_edited: int = MOST_EDITED, *, seconds: float = math.inf
    ) -> None:
        self.trials = Trials(jobs, most_edited)
        self._left = seconds
        self.given_up = 0
        """The number of traces for whose lines no time was left."""

    def proven(self, trace: Trace, cells: Sequence[MatrixCell]) -> list[Suspect]:
        """The lines of a trace, the one first with which the findings conform.

        The first of ``cells`` is the traced one. Of what a value was made of the innermost is
        proven. What other values can do elsewhere, independently of it, proves none of them: a
        weight that is off by a number of ranks or micro-batches can be made good at any line. Then
        only suspected lines are tried, unless a line makes the very value and nothing uses it.
        Where no time is left, no line is proven, as the innermost may not have been tried.
        """
        begin = time.monotonic()
        self.trials.until = begin + self._left * SHARE_OF_A_CAUSE
        try:
            first = self.trials.ordinary(cells[0])
            if first is None or trace.graph is None:
                return trace.suspects
            others = islice(filter(None, map(self.trials.ordinary, cells[1:])), MOST_SHOWN)
            return _Proof(self.trials, trace, trace.graph, first, [*others]).lines()
        except ProofTimeOverError:
            self.given_up += 1
            return trace.suspects
        finally:
            self._left -= time.monotonic() - begin


@dataclass
class _Proof:
    """Tries hypotheses about the lines of one trace on findings of its cause."""

    trials: Trials
    trace: Trace
    graph: Graph
    first: OrdinaryRun
    """That of the traced finding."""

    others: list[OrdinaryRun]
    _held: dict[Hypothesis, Entries] = field(default_factory=dict)
    """The values that lines have in the traced finding."""

    _right: set[Hypothesis] = field(default_factory=set)
    """Lines that count the tokens of parts right, though another count may be meant."""

    _left_out: dict[Hypothesis, LeftOut] = field(default_factory=dict)
    """The parts that lines which count the others right leave out."""

    def lines(self) -> list[Suspect]:
        """The lines of the trace, those that are proven first."""
        of_size = is_of_size(self.trace)
        shown = self._made_good() if of_size else [*map(self._placed_at_parts, self._innermost())]
        if not shown and not of_size:
            edited = edited_lines(self.trials, self.trace, [self.first, *self.others])
            return of_lines([*edited, *self.trace.suspects])
        unused = [*self._unused(shown)]
        findings = 1 + len(self.others)
        is_alone = len({one.line for one, _ in shown}) == 1 and not of_size
        is_shown = findings > 1 or not all(map(_is_of_one_number, shown))
        said = _proven if (is_alone and is_shown) or unused else _made_good
        found = {one.line: said(one, name, findings) for one, name in unused[:1] or shown}
        others = [one for one in self.trace.suspects if one.line not in found]
        return of_lines([*self._unused_factor(), *found.values(), *others])

    def _unused_factor(self) -> Iterator[Suspect]:
        weight = self.trace.weight
        if weight is not None and weight.off and (line := unused_product(self.graph, weight.off)):
            words = f"multiplies by {1 / weight.off:.6g}, which the weight lacks"
            yield Suspect(line, f"{words}, and nothing uses it")

    def _unused(self, shown: Iterable[_Named]) -> Iterator[_Named]:
        """Yield hypotheses on lines that make what others, which hold, had to compute with."""
        for one, name in shown:
            ratio = one.needed / one.had if one.needed and one.had else 1.0
            line = unused_count(self.graph, one.node, ratio) if ratio != 1 else None
            if line is not None:
                yield replace(one, line=line, reason=UNUSED), name

    def _placed_at_parts(self, named: _Named) -> _Named:
        """The hypothesis on a line that counts parts right, and leaves others out, if any."""
        one, name = named
        for part, lacking in self._left_out.items():
            is_sum = lacking.makes(one.had, one.needed) and not is_product(name)
            if is_sum and one.is_made_of(part, self.graph):
                return replace(one, line=part.line, reason=lacking.words), name
        return named

    def _tried(self) -> Iterator[Hypothesis]:
        """Yield the hypotheses that are tried, best first."""
        yield from islice(candidates(self.trace), MOST_TRIED)
        yield from islice(self._reward_hypotheses(), MOST_TRIED)

    def _reward_hypotheses(self) -> Iterator[Hypothesis]:
        if isinstance(self.trace.job, TracedAdvantage):
            ran = self.trials.ran(self.first, is_recorded=True)
            yield from () if ran is None else _rewarded(self.trace, Graph(ran.traces), self.first)

    def _made_good(self) -> list[_Named]:
        """The hypotheses that hold, each with the name of its value."""
        return [(one, name) for one in self._tried() if (name := self._name(one)) is not None]

    def _innermost(self) -> list[_Named]:
        """The hypotheses that hold, of each value only on the innermost of what it is made of.

        A count of the reference is believed before one that is multiplied or divided, which may
        undo elsewhere what is wrong.
        """
        plain: dict[Hypothesis, str] = {}
        products: dict[Hypothesis, str] = {}
        for one in self._tried():
            if any(each.values in UNLESS_PROVEN.get(one.values, ()) for each in plain):
                break
            outer = (each for each in plain if each not in self._right)
            if any(one.is_made_of(each, self.graph) for each in outer):
                continue
            if any(map(one.is_of_all, plain)):
                continue
            if (name := self._name(one)) is not None:
                shown = products if is_product(name) else plain
                not_to_blame = [self._not_to_blame(one, each) for each in shown]
                shown[one] = name
                for each in filter(None, not_to_blame):
                    shown.pop(each, None)
                if one.values in IN_ORDER:
                    break
        return [*(plain or products).items()]

    def _not_to_blame(self, one: Hypothesis, other: Hypothesis) -> Hypothesis | None:
        """The outer one of two hypotheses, if the inner one is a part of it.

        Where a line makes another count of one that is right of a part, it is the inner one.
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
        """The value with which all of some findings conform, where it has to."""
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
        if not shown or self._is_indifferent(one, names[shown[0]]):
            return None
        return None if self._is_meant(one, shown[0]) else shown[0]

    def _conforming(self, needed: Mapping[str, Replacement], run: OrdinaryRun) -> list[str]:
        """The names of the values with which a finding breaks no promise."""
        tried = {one: self.trials.conforms(run, one) for one in {*needed.values()}}
        return [name for name, replaced in needed.items() if tried[replaced]]

    def _is_meant(self, one: Hypothesis, name: str) -> bool:
        """Whether a line does what it is meant to, and another one makes wrong use of it."""
        if one.values is not Values.COUNTS or self.first.cell.spec.metric is not None:
            return False
        of_modes = self.trials.right_in_other_modes(self.first.cell)
        return any(self._is_right(one, name, run) for run in of_modes)

    def _is_right(self, one: Hypothesis, name: str, run: OrdinaryRun) -> bool:
        """Whether a right run computes with a line's value, which no such name is of there."""
        ran = self.trials.ran(run, replaced=one.replacement)
        if ran is None:
            return False
        marked = self.trials.weights(run.cell, ran.observations)
        return name not in counts_placed(run, ran.held, marked) and moves(run, ran.held, marked)

    def _needed(self, one: Hypothesis, run: OrdinaryRun) -> Mapping[str, Replacement]:
        """The values that a line needed, by their names."""
        if one.values is Values.LATER:
            return {_elsewhere(one.replacement.moved): one.replacement}
        is_metric = run.cell.spec.metric is not None
        is_marked = one.values is Values.MASK or (one.needed is not None and not is_metric)
        at = one.mask or one.replacement
        ran = self.trials.ran(run, replaced=replace(at, entries=None if is_marked else ()))
        if ran is None or (is_metric and one.mask is not None):
            return {}
        parts = counts_of_parts(run.contexts[0], ran.observations)
        self._note(one, ran.held, parts)
        if is_marked:
            of_marks = counts_placed if one.mask is None else mask_placed
            found = of_marks(run, ran.held, self.trials.weights(run.cell, ran.observations))
            if one.values is Values.COUNTS:
                of_parts = ordered_as(ran.held, parts)  # of one rank they may be those of the step
                same = {name: each for name, each in of_parts.items() if each in found.values()}
                found = {**found, **same} if found else of_parts  # it multiplies and divides a sum
        elif one.values is Values.RANKS:
            summed = _summed(ran.held)
            found = {} if summed is None else {ALL_RANKS: summed}
        elif one.values is Values.REWARDS:
            values = rewarded(run.cell.job.objective, run.contexts, run.observations)
            found = _nearest(ran.held, ordered_as(ran.held, values))
        else:
            found = ordered_as(ran.held, parts)
        return {
            name: replace(one.replacement, entries=entries)
            for name, entries in found.items()
            if one.values is Values.COUNTS or entries != ran.held
        }

    def _note(self, one: Hypothesis, held: Entries, counts: Mapping[str, OfRanks]) -> None:
        """Remember the values of a line, unless they are of a further finding."""
        if self._held.setdefault(one, held) is held:
            parts = {name: counts[name] for name in PARTS if name in counts}
            self._right.update([one] if held in ordered_as(held, parts).values() else [])
            lacking = [left_out(held, of_ranks) for of_ranks in parts.values()]
            if (found := next(filter(None, lacking), None)) is not None:
                self._left_out[one] = found

    def _is_indifferent(self, one: Hypothesis, replaced: Replacement) -> bool:
        """Whether what is made of rewards at a line may be larger by 1, as others normalise it."""
        if one.values is not Values.REWARDS or replaced.entries is None:
            return False
        if ESTIMATORS[self.first.cell.job.objective].whitens:
            return False
        more = tuple(
            tuple(tuple(value + 1 for value in entries) for entries in of_rank)
            for of_rank in replaced.entries
        )
        return self.trials.conforms(self.first, replace(replaced, entries=more))


def candidates(trace: Trace) -> list[Hypothesis]:
    """The hypotheses to try for a trace, best first."""
    if trace.graph is None:
        return []
    is_own = {one.line for one in trace.suspects if trace.is_own(one.line)}
    return [one for one in hypotheses(trace) if not is_of_size(trace) or one.line in is_own]


def is_of_size(trace: Trace) -> bool:
    """Whether a weight is off by a number of ranks or micro-batches."""
    return trace.weight is not None and trace.weight.right.is_size(trace.weight.off)


def _rewarded(trace: Trace, ordinary: Graph, first: OrdinaryRun) -> Iterator[Hypothesis]:
    """Yield the lines that make what is nothing right of a reward, the first ones first."""
    values = rewarded(first.cell.job.objective, first.contexts, first.observations)
    named = [number for of_ranks in values.values() for one in of_ranks for number in one]
    numbers = np.abs(np.unique([0.0, *named]))
    for one, nodes in rewarded_lines(trace, ordinary):
        of_ranks: list[list[tuple[float, ...]]] = [[] for _ in first.observations]
        for node in nodes:
            of_ranks[node.rank].append(ordinary.operation(node).contents.values)
        held = tuple(tuple(of_rank) for of_rank in of_ranks)
        placed = ordered_as(held, values)
        is_right = any(_distance(held, entries) < CLOSE for entries in placed.values())
        if _nearest(held, placed) and not is_right:
            yield from operands(one, trace, ordinary)
            maker = _wrong_operand(ordinary, nodes[0], numbers)
            is_used_elsewhere = maker is not None and maker.number != one.line.number
            used = one.line if is_used_elsewhere else None
            yield replace(one, line=maker or one.line, used=used)


def _wrong_operand(graph: Graph, node: Node, numbers: NDArray[np.float64]) -> Line | None:
    """The line of the innermost operand that alone has entries which no right computation makes.

    One with a single operand is followed only if it hardly changes it, as adding an epsilon does.
    """
    wrong = [one for one in graph.inputs(node) if not _are_right(graph, one, numbers)]
    if len(wrong) != 1 or not (len(graph.inputs(node)) > 1 or _are_as_large(graph, node, *wrong)):
        return None
    return _wrong_operand(graph, wrong[0], numbers) or graph.operation(wrong[0]).line


def _are_as_large(graph: Graph, one: Node, other: Node) -> bool:
    held, others = (graph.operation(each).contents.values for each in (one, other))
    return len(held) == len(others) and np.allclose(held, others, rtol=CLOSE, atol=0.0)


def _are_right(graph: Graph, node: Node, numbers: NDArray[np.float64]) -> bool:
    held = np.abs(graph.operation(node).contents.values)
    return bool(
        np.isclose(held[:, None], numbers[None, :], rtol=CLOSE, atol=1e-6).any(axis=1).all()
    )


def _nearest(held: Entries, several: Mapping[str, Entries]) -> dict[str, Entries]:
    """The values that a line may have meant, the nearest to its own first."""
    others = ((name, entries) for name, entries in several.items() if not name.startswith(REWARD))
    ordered = sorted(others, key=lambda one: _distance(held, one[1]))
    nearest = [*dict.fromkeys(entries for _, entries in ordered)][:MOST_NAMES]
    return {name: entries for name, entries in ordered if entries in nearest}


def _distance(held: Entries, other: Entries) -> float:
    """The sum of the differences of entries."""
    pairs = zip(_flat(held), _flat(other), strict=True)
    return sum(abs(one - each) for one, each in pairs)


def _flat(held: Entries) -> list[float]:
    return [value for of_rank in held for entries in of_rank for value in entries]


def _summed(held: Entries) -> Entries | None:
    """The sums over the ranks that have different ones, each time; None if they have more or fewer.

    A reduction over one rank does not ask whether others have as many entries.
    """
    if any(len({*map(len, times)}) > 1 for times in zip(*held, strict=False)):
        return None
    sums = [
        tuple(sum(each) for each in zip(*dict.fromkeys(times), strict=True))
        for times in zip(*held, strict=False)
    ]
    return tuple(tuple(sums[: len(of_rank)]) for of_rank in held)


def _is_of_one_number(named: _Named) -> bool:
    """Whether one number is all that a line lacks: some other line could have it in one finding."""
    return named[0].values is Values.COUNTS and named[0].needed is not None


def _proven(one: Hypothesis, name: str, findings: int) -> Suspect:
    """A line that is proven."""
    if one.values is Values.COUNTS:
        meant = f"{one.had:.6g} where {_count(one, name)} is meant"
    else:
        meant = f"anything but {name}"
    return Suspect(one.line, f"proven: {_shown(one, name, findings)}", meant)


def _made_good(one: Hypothesis, name: str, findings: int) -> Suspect:
    """A line that is suspected, and can make good what any other could."""
    return Suspect(one.line, f"{_shown(one, name, findings)}, as with a value elsewhere")


def _shown(one: Hypothesis, name: str, findings: int) -> str:
    instead = f" instead of {one.had:.6g}" if one.values is Values.COUNTS else ""
    if one.used is not None:
        instead = f" where line {one.used.number} has it"
    if one.reason:
        instead = f"{instead}, {one.reason}"
    return f"with {_count(one, name)}{instead}, {extent(findings)}"


def _count(one: Hypothesis, name: str) -> str:
    value = f"{one.needed:g} ({name})" if one.needed else name
    return "1" if name == NO_FACTOR else value


def _elsewhere(by: int) -> str:
    """The name of what an operation takes from other places."""
    places = "entry" if abs(by) == 1 else "entries"
    return f"values from {abs(by)} {places} {'later' if by > 0 else 'earlier'}"
