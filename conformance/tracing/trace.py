"""The trace of a finding: the factors of one token's weight, and the lines that made them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from adapters.contract.batch.altered import painted_value
from conformance.findings.cause import CauseTrace, SuspectedLine, TracedFactor
from conformance.findings.errors import NotTracedError
from conformance.findings.sanitize import sanitize
from conformance.tracing.chain import Chain, chain
from conformance.tracing.graph import Graph, Node, is_close
from conformance.tracing.reasons import Suspect
from conformance.tracing.right_counts import RightCounts
from conformance.tracing.source.arithmetic import goes_on, read_instead
from conformance.tracing.source.origins import source_line
from conformance.tracing.suspects import MOST, Suspects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.findings.trace import Line
    from conformance.tracing.tracer import TracedJob


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What a token's weight is made of, with the lines to look at if it is wrong.

    ``chain`` is None if the token's value is lost before the gradient.
    """

    finding: str
    job: TracedJob
    chain: Chain | None
    suspects: list[Suspect]
    source: Path | None

    @classmethod
    def of(cls, finding: str, job: TracedJob, package: str | None, source: Path | None) -> Trace:
        """The trace of a job that has been run.

        Raises:
            NotTracedError: the framework was not given what is painted.
        """
        graph = Graph(job.traces, painted_value(job.column))
        if not graph.has_paint:
            raise NotTracedError(f"no operation of torch reads {job.column} of the batch")
        chains = [*_chains(graph, job)]
        if not chains:
            suspects = _suspects_of_loss(graph, None if job.logged is None else job.rank)
            return cls(finding=finding, job=job, chain=None, suspects=suspects, source=source)
        of_factors = Suspects(job, chains[0], package)
        suspects = of_factors.best() if job.is_wrong else []
        trace = cls(finding=finding, job=job, chain=chains[0], suspects=suspects, source=source)
        if not (job.is_wrong and job.logged is not None and trace.is_pending):
            return trace
        read = _of_reading(chains, trace.rest)
        is_to_blame = not suspects or of_factors.may_be_wrong(trace.rest)
        ordered = [*read, *suspects] if is_to_blame else [*suspects, *read]
        by_line: dict[Line, Suspect] = {}
        for one in ordered:
            by_line.setdefault(one.line, one)
        return replace(trace, suspects=[*by_line.values()][:MOST])

    @property
    def of_cause(self) -> CauseTrace:
        """What a report keeps of it; factors of 1 are left out."""
        return CauseTrace(suspects=self._suspected, chain=self._factors)

    @property
    def _factors(self) -> list[TracedFactor]:
        if self.chain is None:
            return []
        factors = [one for one in self.chain.factors if not one.is_idle]
        lines = [self.chain.operation(one).line for one in factors]
        return [
            TracedFactor(value=one.value, place=None if line is None else self.place(line))
            for one, line in zip(factors, lines, strict=True)
        ]

    @property
    def _suspected(self) -> list[SuspectedLine]:
        return [
            SuspectedLine(
                file=sanitize(one.line.file, self.source),
                line=one.line.number,
                function=one.line.function,
                why=one.why,
            )
            for one in self.suspects
        ]

    def place(self, line: Line) -> str:
        """A line as ``file:line (function)``, relative to the framework's package."""
        return sanitize(str(line), self.source)

    @property
    def rest(self) -> float:
        """What the weight has beyond the factors: a reduction that the train step has yet to do."""
        if self.chain is None or not self.chain.product:
            return 1.0
        return abs(self.job.traced) * self.job.derivative / self.chain.product

    @property
    def objection(self) -> str | None:
        """Why the factors do not explain the weight of the finding; None if they do."""
        job = self.job
        if self.chain is None:
            if job.observed:
                return f"the weight is {job.observed:.6g}, and the traced job has no gradient of it"
            return None
        first = self.chain.graph.operation(self.chain.way[0])
        if first.contents.largest != self.chain.graph.paint:
            place = "" if first.line is None else f" at {self.place(first.line)}"
            return f"the way of the value is lost before {first.name}{place}"
        if abs(job.traced - job.observed) > job.tolerance * abs(job.observed):
            return (
                f"the token weighs {job.traced:.6g} where it alone has a value, and"
                f" {job.observed:.6g} among others: its weight depends on their losses"
            )
        return None

    @property
    def is_pending(self) -> bool:
        """Whether the train step has yet to reduce the gradient that the adapter read."""
        return not is_close(self.rest, 1)


def _chains(graph: Graph, job: TracedJob) -> Iterator[Chain]:
    """Yield the chain that ends in the gradient, or those that may end in the logged number.

    There is none if the value is lost. Of numbers that may have become the logged one the first are
    those that differ from it by what is known, and have the same value.
    """
    if job.logged is None:
        yield from (chain(graph, end, job.gradient_unit) for end in islice(graph.ends, 1))
        return
    if not job.logged:
        return
    right = RightCounts(job.context, job.place)
    number = abs(job.logged)
    ends = graph.logged(number, job.rank)
    chains = [chain(graph, end, number=number) for end in ends]

    def is_known(one: Chain) -> bool:
        rest = abs(job.traced) * job.derivative / one.product if one.product else 0.0
        return right.is_size(rest) or any(
            right.ingredient(factor) is not None for factor in (rest, 1 / (rest or math.inf))
        )

    first = next(filter(is_known, chains), next(iter(chains), None))
    yield from (one for one in chains if first and is_close(one.product, first.product))


def _of_reading(chains: Sequence[Chain], rest: float) -> list[Suspect]:
    """The lines of plain Python that go on with a number out of its last tensor.

    The first that scales it comes first. A line that was called from another file to read one, or
    that only collects it, says less than who called it.
    """
    stacks = [one.graph.operation(one.way[-1]).stack for one in chains]
    words = f"Python goes on with the number from here, and multiplies it by {rest:.6g}"
    going = [one for stack in stacks for one in goes_on(stack)]
    scaling = [one.line for one in going if one.scales]
    outside = [[line for line in stack if line.file != stack[0].file][:1] for stack in stacks]
    callers = [line for lines in reversed(outside) for line in lines]  # the first to read one first
    others = [*(one.line for one in going[:MOST]), *(stack[0] for stack in stacks)]
    return [Suspect(line, words) for line in (*scaling[:1], *callers, *others)]


def _suspects_of_loss(graph: Graph, rank: int | None) -> list[Suspect]:
    """The lines after which a token's value is nowhere: of its gradient, if it has any.

    Of a logged number they are those of the rank that logs it, where the value came there.
    """
    painted = sorted(graph.painted.items(), key=lambda one: (one[0].rank == rank, one[0]))
    last = {in_gradient: node for node, in_gradient in painted}
    ends = [last[one] for one in (True, False) if one in last and (rank is None or not one)]
    readers = [
        Node(end.rank, place)
        for end in ends
        for place, operation in enumerate(graph.traces[end.rank].operations)
        if end.place in operation.inputs
    ]
    words = "no operation after this line holds the value of the token"
    stacks = [graph.operation(node).stack for node in [*readers, *ends]]
    lines = [line for stack in stacks for line in stack[: MOST if rank is not None else 1]]
    lost = [Suspect(line, words) for line in dict.fromkeys(lines)]
    before = _unreduced(stacks[-1]) if rank is not None and stacks else _detached(graph)
    return [*before, *lost][:MOST]


def _unreduced(stack: Sequence[Line]) -> list[Suspect]:
    """The lines that go on with what a call was given, and not with the number it returned."""
    words = "reads what was given to a call, and nothing reads the number that came of it"
    return [Suspect(line, words) for line in read_instead(stack)]


def _detached(graph: Graph) -> list[Suspect]:
    """The first line that adds to the loss a value which has no gradient, and who called it."""
    for node in sorted(graph.trained):
        operation = graph.operation(node)
        before = [graph.operation(one) for one in graph.inputs(node) if one in graph.painted]
        if any(one.requires_grad for one in before) and not operation.requires_grad:
            words = "the value of the token goes on to the loss from here, without a gradient"
            stack = sorted(
                operation.stack[:MOST], key=lambda line: "detach" not in source_line(line)
            )
            return [Suspect(line, words) for line in stack]
    return []
