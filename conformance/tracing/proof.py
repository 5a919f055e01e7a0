"""Shows by runs which line made a cause: with the values that it had to have, findings conform."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import MARKS
from conformance.findings.verdict import Verdict
from conformance.judging.weights import final_weights, step_context
from conformance.ranks.pool import Ran
from conformance.runs.check import judge_outcome
from conformance.tracing.hypotheses import NO_FACTOR, counts_of_step, counts_of_token, hypotheses
from conformance.tracing.suspects.reasons import Suspect
from conformance.tracing.suspects.wrong_weight import WrongWeight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from conformance.expected.step_context import StepContext
    from conformance.plan.matrix import MatrixCell
    from conformance.runs.jobs import SharedJobs
    from conformance.tracing.hypotheses import Hypothesis
    from conformance.tracing.trace import Trace

    Entries = tuple[tuple[tuple[float, ...], ...], ...]
    """By rank, and by how often the line has asked."""

MOST_TRIED = 12
"""Hypotheses of a cause that are tried."""

MOST_SHOWN = 4
"""Further findings of a cause that a line must make right."""

MOST_PROVEN = 3
"""Lines of a cause that are shown."""

CLOSE = 1e-4
"""The largest relative difference of two counts that are one, after all roundings of a step."""


class _Place(NamedTuple):
    """An entry that is replaced."""

    rank: int
    times: int
    entry: int


@dataclass(frozen=True)
class _Run:
    """An ordinary run of a finding's job: the weights of its only step, and the right ones."""

    cell: MatrixCell
    context: StepContext
    observed: NDArray[np.float64]

    @property
    def expected(self) -> NDArray[np.float64]:
        return self.context.expected


@dataclass
class Prover:
    """Tries hypotheses about the lines of a cause on its findings."""

    jobs: SharedJobs
    package: str | None
    """That of the framework, whose lines are tried before those of its engine."""

    _runs: dict[str, _Run | None] = field(default_factory=dict)

    def proven(self, trace: Trace, cells: Sequence[MatrixCell]) -> list[Suspect]:
        """The lines with which the findings of a cause conform, the traced one first in ``cells``."""
        if trace.chain is None or not trace.job.expected:
            return []
        found: list[Suspect] = []
        first, *others = (self._run(one) for one in cells if len(one.case.steps) == 1)
        weight = WrongWeight(trace.job, trace.chain, self.package)
        suspected = [one.line for one in trace.suspects]
        for one in hypotheses(weight, suspected)[:MOST_TRIED]:
            if first is None or any(one.line == each.line for each in found):
                continue
            for name, entries in self._needed(one, first).items():
                if not self._conforms(one, first, entries):
                    continue
                shown = [self._shows(one, name, run) for run in others[:MOST_SHOWN] if run]
                if all(shown):
                    found.append(Suspect(one.line, _words(one, name, 1 + len(shown))))
                    break
            if len(found) == MOST_PROVEN:
                break
        return found

    def _run(self, cell: MatrixCell) -> _Run | None:
        if cell.job_id not in self._runs:
            self._runs[cell.job_id] = None
            ran = self.jobs.observations(cell.job)
            if ran is not None:
                context = step_context(cell.job, 0, ran, self.jobs.description)
                self._runs[cell.job_id] = _Run(cell, context, self._weights(cell, ran))
        found = self._runs[cell.job_id]
        return None if found is None else replace(found, cell=cell)

    def _weights(
        self, cell: MatrixCell, observations: Sequence[Observation]
    ) -> NDArray[np.float64]:
        conventions = self.jobs.description.conventions
        return final_weights(observations, 0, cell.job, conventions)[0]

    def _shows(self, one: Hypothesis, name: str, run: _Run) -> bool:
        entries = self._needed(one, run).get(name)
        return entries is not None and self._conforms(one, run, entries)

    def _conforms(self, one: Hypothesis, run: _Run, entries: Entries) -> bool:
        """Whether a finding conforms where the line computes with what it had to."""
        replaced = replace(one.replacement, entries=entries)
        outcome = self.jobs.run(replace(run.cell.job, replaced=replaced))
        judged = judge_outcome(run.cell, outcome, self.jobs)
        return judged.verdict is Verdict.CONFORMS

    def _needed(self, one: Hypothesis, run: _Run) -> Mapping[str, Entries]:
        """What had to be at a line, by the name of the count that it then is."""
        is_logged = run.cell.spec.metric is not None
        replaced = replace(one.replacement, entries=() if is_logged else None)
        ran = self.jobs.run(replace(run.cell.job, replaced=replaced))
        if not isinstance(ran, Ran):
            return {}
        if is_logged:
            return _of_step(one, run, ran)
        return _of_tokens(run, ran.held, self._weights(run.cell, ran.observations))


def _of_step(one: Hypothesis, run: _Run, ran: Ran) -> dict[str, Entries]:
    """The same count at every entry, as a logged number does not show which tokens one is of."""
    counts = counts_of_step(run.context)
    return {
        name: tuple(tuple((count,) * len(each) for each in of_rank) for of_rank in ran.held)
        for name, count in counts.items()
    }


def _of_tokens(run: _Run, held: Entries, marked: NDArray[np.float64]) -> dict[str, Entries]:
    """The counts of the tokens whose weights change with the mark of each entry."""
    needed: dict[_Place, float] = {}
    names: set[str] | None = None
    for token, (observed, right, after) in enumerate(
        zip(run.observed, run.expected, marked, strict=True)
    ):
        if not observed or not right:
            continue
        place, multiplies = _marked(after / observed, held)
        if place is None:
            if not _is_close(observed, right):
                return {}  # it is wrong, and this is not what makes it so
            continue
        before = held[place.rank][place.times][place.entry] or 1.0
        value = before * (right / observed if multiplies else observed / right)
        if not _is_close(needed.setdefault(place, value), value):
            return {}
        fitting = {
            name
            for name, count in counts_of_token(run.context, token).items()
            if _is_close(count, value)
        }
        names = fitting if names is None else names & fitting
    return {name: _replaced(held, needed) for name in sorted(names or ())}


def _marked(ratio: float, held: Entries) -> tuple[_Place | None, bool]:
    """The entry whose mark a weight is multiplied by, or else divided by, if it is one."""
    multiplies = abs(ratio) > 1
    mark = abs(ratio) if multiplies or not ratio else 1 / abs(ratio)
    rank, index = divmod(round(mark), MARKS)
    if not 1 <= rank <= len(held) or abs(mark - round(mark)) > 0.1:
        return None, multiplies
    ends = [*accumulate(map(len, held[rank - 1]))]
    times = sum(end <= index for end in ends)
    if times == len(ends):
        return None, multiplies
    start = ends[times - 1] if times else 0
    return _Place(rank - 1, times, index - start), multiplies


def _replaced(held: Entries, needed: Mapping[_Place, float]) -> Entries:
    return tuple(
        tuple(
            tuple(
                needed.get(_Place(rank, times, index), value) for index, value in enumerate(entries)
            )
            for times, entries in enumerate(of_rank)
        )
        for rank, of_rank in enumerate(held)
    )


def _is_close(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=CLOSE, atol=0.0))


def _words(one: Hypothesis, name: str, findings: int) -> str:
    count = "1" if name == NO_FACTOR else f"{one.needed:g} ({name})"
    alone = "its finding conforms" if findings == 1 else f"{findings} of its findings conform"
    return f"proven: with {count} instead of {one.had:.6g} {alone}"
