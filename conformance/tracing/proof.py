"""Shows by runs which line made a cause: with the values that it had to have, findings conform."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import MARKS
from conformance.findings.verdict import Verdict
from conformance.judging.weights import final_weights, step_context
from conformance.ranks.pool import Ran
from conformance.runs.check import judge_outcome
from conformance.tracing.hypotheses import hypotheses
from conformance.tracing.right_counts import NO_FACTOR, Named, counts_of_step, counts_of_token
from conformance.tracing.suspects.reasons import Suspect, of_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from adapters.contract.job import Replacement
    from conformance.expected.step_context import StepContext
    from conformance.findings.trace import Line
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

ACTIVE = "1 for active tokens, 0 for others"
"""The name of the right mask."""

PARTS = (
    "active tokens of a micro-batch on its rank",
    "active tokens of a sample in a micro-batch on its rank",
)
"""The parts of a step whose tokens are counted before the counts are added up."""

CLOSE = 1e-4
"""The largest relative difference of two counts that are one, after all roundings of a step."""


class _Place(NamedTuple):
    """An entry that is replaced."""

    rank: int
    times: int
    entry: int


@dataclass(frozen=True)
class _Run:
    """An ordinary run of a finding's job: the weights of its only step, and the right ones.

    Those that are observed are of (ranks, tokens).
    """

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
    _runs: dict[str, _Run | None] = field(default_factory=dict)

    def proven(self, trace: Trace, cells: Sequence[MatrixCell]) -> list[Suspect]:
        """The lines of a trace, those with which the findings conform first.

        The first of ``cells`` is the traced one. If the weight is off by a number of ranks or
        micro-batches, a factor at any line corrects it, which proves none. Then only suspected
        lines are tried, and their order stays.
        """
        first = None if trace.chain is None else self._run(cells[0])
        if trace.chain is None or first is None:
            return trace.suspects
        suspected = {one.line: one for one in trace.suspects}
        is_of_size = _is_of_size(trace)
        several = candidates(trace)
        others = filter(None, map(self._run, cells[1:]))
        runs = [*islice(others, MOST_SHOWN)] if several else []
        said = _made_good if is_of_size else _proven
        proven: dict[Line, Suspect] = {}
        for one in several[:MOST_TRIED]:
            name = None if one.line in proven else self._name(one, first, runs)
            if name is not None:
                proven[one.line] = said(one, name, 1 + len(runs))
            if len(proven) == MOST_PROVEN:
                break
        return of_lines((({} if is_of_size else proven) | suspected | proven).values())

    def _name(self, one: Hypothesis, first: _Run, others: Sequence[_Run]) -> str | None:
        """The count with which all of some findings conform."""
        counts = counts_of_step(first.context)
        for name, entries in self._needed(one, first).items():
            is_other = one.needed and name in counts and not _is_close(counts[name], one.needed)
            if (
                not is_other
                and self._conforms(one, first, entries)
                and all(self._shows(one, name, run) for run in others)
            ):
                return name
        return None

    def _run(self, cell: MatrixCell) -> _Run | None:
        """The ordinary run of a finding's job; None if that has several steps, or does not run."""
        if len(cell.case.steps) > 1:
            return None
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
        return np.array(final_weights(observations, 0, cell.job, conventions))

    def _shows(self, one: Hypothesis, name: str, run: _Run) -> bool:
        entries = self._needed(one, run).get(name)
        return entries is not None and self._conforms(one, run, entries)

    def _conforms(self, one: Hypothesis, run: _Run, entries: Entries) -> bool:
        """Whether a finding breaks no promise where the line computes with what it had to."""
        replaced = replace(one.replacement, entries=entries)
        outcome = self.jobs.run(replace(run.cell.job, replaced=replaced))
        judged = judge_outcome(run.cell, outcome, self.jobs)
        return judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)

    def _needed(self, one: Hypothesis, run: _Run) -> Mapping[str, Entries]:
        """The values that a line needed, by the name of the count that they then are."""
        if one.mask is not None:
            return self._mask(one.mask, run)
        is_marked = run.cell.spec.metric is None and one.needed is not None
        replaced = replace(one.replacement, entries=None if is_marked else ())
        ran = self.jobs.run(replace(run.cell.job, replaced=replaced))
        if not isinstance(ran, Ran):
            return {}
        if is_marked:
            return _of_tokens(run, ran.held, self._weights(run.cell, ran.observations))
        if one.needed is None:
            return _of_parts(run.context, ran.observations, ran.held)
        return _of_step(run, ran.held)

    def _mask(self, multiplied: Replacement, run: _Run) -> Mapping[str, Entries]:
        """The right mask where the loss is multiplied by it."""
        ran = self.jobs.run(replace(run.cell.job, replaced=multiplied))
        if not isinstance(ran, Ran) or run.cell.spec.metric is not None:
            return {}
        marked, needed = self._weights(run.cell, ran.observations), {}
        for rank, token in np.argwhere(marked):
            before, right = run.observed[rank, token], run.expected[token]
            if size := float(before or right):  # else it is masked, as it has to be
                place, multiplies = _marked(float(marked[rank, token]) / size, ran.held)
                if place is not None and multiplies:
                    needed[place] = float(right > 0)
        return {ACTIVE: _replaced(ran.held, needed)} if needed else {}


def candidates(trace: Trace) -> list[Hypothesis]:
    """The hypotheses to try for a trace, best first."""
    if trace.weight is None:
        return []
    suspected = [one.line for one in trace.suspects]
    return [
        one
        for one in hypotheses(trace.weight, suspected)
        if not _is_of_size(trace) or (one.line in suspected and trace.weight.is_own(one.line))
    ]


def _is_of_size(trace: Trace) -> bool:
    """Whether a weight is off by a number of ranks or micro-batches."""
    return trace.weight is not None and trace.weight.right.is_size(trace.weight.off)


def _of_step(run: _Run, held: Entries) -> dict[str, Entries]:
    """The same count at every entry, as a logged number does not show which tokens one is of."""
    return {
        name: tuple(tuple((count,) * len(each) for each in of_rank) for of_rank in held)
        for name, count in counts_of_step(run.context).items()
    }


def _of_parts(
    context: StepContext, observations: Sequence[Observation], held: Entries
) -> dict[str, Entries]:
    """The counts of each rank's micro-batches, or of the samples in these, in their order."""
    found: dict[str, list[tuple[tuple[float, ...], ...]]] = {name: [] for name in PARTS}
    mask = context.step.mask
    for one, of_rank in zip(observations, held, strict=True):
        passes = one.forward_passes[0] if one.forward_passes else np.array([])
        numbers = [number for number in np.unique(passes) if number >= 0]
        of_passes = [float(mask[passes == number].sum()) for number in numbers]
        of_samples = [
            float(mask[(passes == number) & (context.sample == sample)].sum())
            for number in numbers
            for sample in np.unique(context.sample[passes == number])
        ]
        for name, counts in zip(PARTS, (of_passes, of_samples), strict=True):
            if len(counts) == len(of_rank) and all(len(each) == 1 for each in of_rank):
                found[name].append(tuple((count,) for count in counts))
    return {name: tuple(one) for name, one in found.items() if len(one) == len(held)}


def _of_tokens(run: _Run, held: Entries, marked: NDArray[np.float64]) -> dict[str, Entries]:
    """The counts of the tokens whose weights change with the mark of each entry."""
    needed: dict[_Place, Named] = {}
    for rank, token in np.argwhere(run.observed * run.expected):
        observed, right = float(run.observed[rank, token]), float(run.expected[token])
        place, multiplies = _marked(float(marked[rank, token]) / observed, held)
        if place is None:
            if not _is_close(observed, right):
                return {}  # it is wrong, and this is not what makes it so
            continue
        before = held[place.rank][place.times][place.entry] or 1.0
        value = before * (right / observed if multiplies else observed / right)
        counts = counts_of_token(run.context, int(token)).items()
        fitting = {name: count for name, count in counts if _is_close(count, value)}
        known = needed.setdefault(place, fitting)
        needed[place] = {name: count for name, count in fitting.items() if known.get(name) == count}
    several = [*needed.values()]
    return {
        name: _replaced(held, {place: counts[name] for place, counts in needed.items()})
        for name in (several[0] if several else ())
        if all(name in counts for counts in several)
    }


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


def _proven(one: Hypothesis, name: str, findings: int) -> Suspect:
    """A line that is proven."""
    meant = (
        "a mask of other tokens"
        if name == ACTIVE
        else f"{one.had:.6g} where {_count(one, name)} is meant"
    )
    return Suspect(one.line, f"proven: {_shown(one, name, findings)}", meant)


def _made_good(one: Hypothesis, name: str, findings: int) -> Suspect:
    """A line that is suspected, and can make good what any other could."""
    return Suspect(one.line, f"{_shown(one, name, findings)}, as with a factor elsewhere")


def _shown(one: Hypothesis, name: str, findings: int) -> str:
    instead = "" if name == ACTIVE else f" instead of {one.had:.6g}"
    shown = f"{findings} of its findings conform" if findings > 1 else "its only finding conforms"
    return f"with {_count(one, name)}{instead}, {shown}"


def _count(one: Hypothesis, name: str) -> str:
    value = f"{one.needed:g} ({name})" if one.needed else name
    return "1" if name == NO_FACTOR else value
