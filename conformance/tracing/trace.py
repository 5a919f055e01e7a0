"""The trace of a finding: the factors of one token's weight, and the lines that made them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, permutations
from typing import TYPE_CHECKING

from adapters.contract.batch.altered import sizes_given
from adapters.contract.objective import COMPARING_ADVANTAGES, Metric
from conformance.findings.cause import (
    CauseTrace,
    SuspectedLine,
    TracedCount,
    TracedFactor,
    TracedToken,
)
from conformance.findings.errors import NotTracedError
from conformance.findings.sanitize import sanitize
from conformance.findings.trace import LISTED, READ
from conformance.tracing.chain import Chain, Factor, chain
from conformance.tracing.graph import Graph, is_close, is_of_count
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.right_counts import RightCounts, counts_of_token
from conformance.tracing.suspects.blame import Blame
from conformance.tracing.suspects.compared import compared
from conformance.tracing.suspects.lost import lost_after
from conformance.tracing.suspects.numbers import digits_lost, made_by
from conformance.tracing.suspects.reasons import MOST, Suspect, of_lines
from conformance.tracing.suspects.wrong_advantage import of_advantage
from conformance.tracing.unfolded import unfolded
from conformance.tracing.wrong_weight import WrongWeight, is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from conformance.findings.trace import Line
    from conformance.tracing.graph import Node
    from conformance.tracing.traced import TracedJob


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """The factors of a token's weight, with the lines to look at if the weight is wrong.

    ``chain`` is None if the token's value is lost before the gradient.
    """

    finding: str
    job: TracedJob
    chain: Chain | None
    suspects: list[Suspect]
    package: str | None
    """The framework's package, whose lines are suspected before those of its engine."""

    source: Path | None

    graph: Graph
    """The operations of all ranks."""

    @classmethod
    def of(cls, finding: str, job: TracedJob, package: str | None, source: Path | None) -> Trace:
        """The trace of a job that has been run.

        Raises:
            NotTracedError: no operation of the framework reads the painted column.
        """
        made = partial(cls, finding=finding, job=job, package=package, source=source)
        if job.is_of_all:
            graph = Graph(job.traces)
            looked_at = digits_lost if isinstance(job, TracedAdvantage) else made_by
            suspects = looked_at(graph, job, package) if job.is_wrong else []
            return made(chain=None, suspects=suspects, graph=graph)
        is_of_reward = isinstance(job, TracedAdvantage)  # Python often keeps rewards in lists
        reading = (READ, LISTED) if is_of_reward else (READ,)
        graphs = (Graph(job.traces, size, reading) for size in sizes_given(job.column))
        painted = next((one for one in graphs if one.has_paint), None)
        if painted is None and is_of_reward:  # numpy computes the advantages, unrecorded
            return made(chain=None, suspects=[], graph=Graph(job.traces))
        if painted is None:
            raise NotTracedError(f"no operation of torch reads {job.column} of the batch")
        graph = painted
        made = partial(made, graph=graph)
        if isinstance(job, TracedAdvantage):
            suspects = of_advantage(graph, job, package) if job.is_wrong else []
            return made(chain=None, suspects=suspects)
        chains = [*_chains(graph, job)]
        if not chains:
            return made(chain=None, suspects=lost_after(graph, job, package))
        weight = WrongWeight(job, chains[0], package)
        if job.depends_on_others and job.job.objective in COMPARING_ADVANTAGES:
            suspects = compared(graph) if job.is_wrong else []
            return made(chain=chains[0], suspects=suspects)
        blame = Blame(weight)
        trace = made(chain=chains[0], suspects=[])
        suspects = blame.suspects() if job.is_wrong and not trace.is_right_so_far else []
        trace = replace(trace, suspects=suspects)
        if not (job.is_wrong and job.logged is not None and trace.is_pending):
            return trace
        read = blame.of_divisor(1 / trace.rest) if trace.rest else []
        read += _of_reading(chains, trace.rest, weight)
        # If a token must weigh nothing, its divisor does not matter.
        may_be_wrong = bool(job.expected) and _may_be_wrong(trace.rest, weight)
        is_to_blame = not suspects or may_be_wrong
        ordered = [*read, *suspects] if is_to_blame else [*suspects, *read]
        return replace(trace, suspects=of_lines(ordered))

    def is_own(self, line: Line) -> bool:
        """Whether a line is the framework's, and not its engine's."""
        return is_own(line, self.package)

    @property
    def weight(self) -> WrongWeight | None:
        """The weight that is the product of the chain's factors; None without a chain."""
        return None if self.chain is None else WrongWeight(self.job, self.chain, self.package)

    @property
    def of_cause(self) -> CauseTrace:
        """The trace as a report keeps it; factors of 1 are left out."""
        job = self.job
        of_token = TracedToken(name=str(job.token), observed=job.observed, expected=job.expected)
        token = None if job.is_of_all else of_token
        return CauseTrace(
            suspects=suspected(self.suspects, self.source), chain=self._factors, token=token
        )

    @property
    def _factors(self) -> list[TracedFactor]:
        if self.chain is None:
            return []
        factors = (one for one in self.chain.factors if not one.is_idle)
        return [self._factor(self.chain, one) for one in factors]

    def _factor(self, chain: Chain, factor: Factor) -> TracedFactor:
        return TracedFactor(
            value=factor.value,
            place=self._place(chain.operation(factor).line),
            made_of=[
                TracedCount(depth=row.depth, words=row.words, place=self._place(row.line))
                for row in unfolded(chain, factor)
            ],
        )

    def _place(self, line: Line | None) -> str | None:
        return None if line is None else self.place(line)

    def place(self, line: Line) -> str:
        """A line as ``file:line (function)``, relative to the framework's package."""
        return sanitize(str(line), self.source)

    @property
    def rest(self) -> float:
        """The factor of the weight that is not in the chain, such as a pending reduction."""
        if self.chain is None or not self.chain.product:
            return 1.0
        return abs(self.job.traced) * self.job.derivative / self.chain.product

    @property
    def objection(self) -> str | None:
        """The reason why the factors do not explain the finding's weight; None if they do."""
        job = self.job
        if isinstance(job, TracedAdvantage) or job.is_of_all:
            return None
        if self.chain is None:
            if job.observed:
                return f"the weight is {job.observed:.6g}, and the traced job has no gradient of it"
            return None
        first = self.chain.graph.operation(self.chain.way[0])
        if first.contents.largest != self.chain.graph.paint:
            place = "" if first.line is None else f" at {self.place(first.line)}"
            return f"the way of the value is lost before {first.name}{place}"
        if job.depends_on_others:
            return (
                f"the token weighs {job.traced:.6g} where it alone has a value, and"
                f" {job.observed:.6g} among others: its weight depends on their losses"
            )
        return None

    @property
    def is_right_so_far(self) -> bool:
        """Whether the factors give the right gradient, and an unknown further factor is wrong."""
        weight, rest = self.weight, abs(self.rest)
        if weight is None or self.job.logged is not None or weight.right.is_size(rest):
            return False
        return self.is_pending and is_close(rest, abs(weight.off))

    @property
    def is_pending(self) -> bool:
        """Whether the train step has yet to reduce the gradient that the adapter read."""
        return not is_close(self.rest, 1)


def suspected(suspects: Iterable[Suspect], source: Path | None) -> list[SuspectedLine]:
    """The suspected lines in the form of a report."""
    return [
        SuspectedLine(
            file=sanitize(one.line.file, source),
            line=one.line.number,
            function=one.line.function,
            why=one.why,
            instead=one.instead,
        )
        for one in suspects
    ]


def _chains(graph: Graph, job: TracedJob) -> Iterator[Chain]:
    """Yield the chain that ends in the gradient, or the chains that may end in the logged number.

    There is none if the token's value is lost. Several numbers may have become the logged number:
    those made of the loss come before others. The first that differs from the logged number by a
    known count is chosen, and all chains with the same product are yielded.
    """
    if job.logged is None:
        if not job.traced:
            return
        yield from (chain(graph, end, job.gradient_unit) for end in islice(graph.ends, 1))
        return
    if not job.logged:
        return
    right = RightCounts(job.context, job.place)
    number = abs(job.logged)
    is_term = job.metric not in (Metric.LOSS, Metric.POLICY_LOSS)
    ends = graph.logged(number, job.rank)
    read = [(end, _read_as(graph, end, number)) for end in ends]
    chains = [chain(graph, end, number=entry) for end, entry in read]
    divided = [one for one, (_, entry) in zip(chains, read, strict=True) if entry != number]

    def rest(one: Chain) -> float:
        return abs(job.traced) * job.derivative / one.product if one.product else 0.0

    def is_known(one: Chain) -> bool:
        beyond = rest(one)
        ways = (beyond, 1 / (beyond or math.inf))
        is_count = any(right.ingredient(factor) is not None for factor in ways)
        return one in divided or right.is_size(beyond) or is_count

    def is_apart(one: Chain) -> tuple[bool, bool]:
        """Whether a chain has no loss, or for a single term contains the loss of all terms."""
        of_loss = any(graph.operation(node).requires_grad for node in one.way)
        of_root = not graph.roots.isdisjoint(one.way)
        return not of_loss and not is_close(rest(one), 1), is_term and of_root

    chains.sort(key=is_apart)
    by_whole = [one for one in chains if rest(one) and is_of_count(rest(one))]
    first = next(filter(is_known, chains), next(iter(by_whole or chains), None))
    yield from (one for one in chains if first and is_close(one.product, first.product))


def _read_as(graph: Graph, end: Node, number: float) -> float:
    """The entry of a node that became a number, perhaps after division by another entry."""
    values = [abs(one) for one in graph.operation(end).contents.values if one]
    if any(is_close(one, number) for one in values):
        return number
    quotients = (one for one, by in permutations(values, 2) if is_close(one / by, number))
    return next(quotients, number)


def _may_be_wrong(factor: float, weight: WrongWeight) -> bool:
    """Whether a factor beyond the chain is the weight's error, or should be a known count."""
    needed = factor / weight.off if weight.off else 0.0
    if is_close(factor, weight.off) or not needed:
        return True
    counts = counts_of_token(weight.traced.context, weight.traced.place).values()
    return weight.right.is_size(needed) or any(is_close(one * needed, 1) for one in counts)


def _of_reading(chains: Sequence[Chain], rest: float, weight: WrongWeight) -> list[Suspect]:
    """The lines that read the number from its last tensor, and their callers."""
    words = f"Python goes on with the number from here, and multiplies it by {rest:.6g}"
    stacks = [one.graph.operation(one.way[-1]).stack[:MOST] for one in chains]
    lines = sorted(
        [line for stack in stacks for line in stack], key=lambda line: not weight.is_own(line)
    )
    return [Suspect(line, words) for line in lines]
