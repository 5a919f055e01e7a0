"""The trace of a finding: the factors of one token's weight, and the lines that made them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract.batch.altered import painted_value
from conformance.findings.cause import CauseTrace, SuspectedLine, TracedFactor
from conformance.findings.errors import NotTracedError
from conformance.findings.sanitize import sanitize
from conformance.tracing.chain import Chain, chain
from conformance.tracing.graph import Graph, Node, is_close
from conformance.tracing.reasons import Suspect
from conformance.tracing.suspects import MOST, Suspects

if TYPE_CHECKING:
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
        ends = graph.ends if job.logged is None else graph.logged(job.logged)
        end = next(ends, None)
        if end is None:
            suspects = _suspects_of_loss(graph)
            return cls(finding=finding, job=job, chain=None, suspects=suspects, source=source)
        found = chain(graph, end, job.gradient_unit)
        suspects = Suspects(job, found, package).best() if job.is_wrong else []
        trace = cls(finding=finding, job=job, chain=found, suspects=suspects, source=source)
        if job.is_wrong and job.logged is not None and trace.is_pending:
            return replace(trace, suspects=[*_read(graph, end, trace.rest), *suspects][:MOST])
        return trace

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


def _read(graph: Graph, end: Node, rest: float) -> list[Suspect]:
    """The line that reads a number out of its last tensor, with what plain Python makes of it."""
    words = f"Python goes on with the number from here, and multiplies it by {rest:.6g}"
    return [Suspect(line, words) for line in graph.operation(end).stack[:1]]


def _suspects_of_loss(graph: Graph) -> list[Suspect]:
    """The lines after which a token's value is nowhere: of its gradient, if it has any."""
    painted = graph.painted.items()
    last = {in_gradient: node for node, in_gradient in sorted(painted)}
    ends = [last[one] for one in (True, False) if one in last]
    readers = [
        Node(end.rank, place)
        for end in ends
        for place, operation in enumerate(graph.traces[end.rank].operations)
        if end.place in operation.inputs
    ]
    words = "no operation after this line holds the value of the token"
    lines = [graph.operation(node).line for node in [*readers, *ends]]
    return [Suspect(line, words) for line in dict.fromkeys(lines) if line is not None][:MOST]
