"""The outcome of a check in words: which mistake, by how much, where, and the smallest step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from conformance.explain.causes import with_traces
from conformance.findings.badness import explain
from conformance.findings.cause import UNEXPLAINED, Severity
from conformance.findings.verdict import WRONG
from conformance.views.formatting import SYMBOLS
from conformance.views.traces import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.plan.matrix import MatrixCell
    from conformance.tracing.trace import Trace


LEFT_EARLY = (
    "the loop was left before its last step, or never begun, so that nothing was judged; let it go"
    " through all steps"
)


class WrongLossError(AssertionError):
    """The trainer does not weigh tokens as its mode says; the message lists the mistakes."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a check: all of its findings, their causes, and the trace of the worst."""

    cells: tuple[MatrixCell, ...]
    findings: list[Finding]
    causes: list[Cause]
    trace: Trace | None

    @classmethod
    def of(
        cls,
        cells: tuple[MatrixCell, ...],
        findings: list[Finding],
        causes: list[Cause],
        traces: Sequence[Trace],
    ) -> Self:
        """The outcome for causes; their traces may merge causes, and the first trace is shown."""
        merged = {trace.finding: trace.of_cause for trace in traces}
        by_id = {finding.id: finding for finding in findings}
        return cls(
            cells=cells,
            findings=findings,
            causes=with_traces(causes, merged, by_id),
            trace=next(iter(traces), None),
        )

    @property
    def is_wrong(self) -> bool:
        """Whether the trainer is wrong; advice is not."""
        return any(finding.verdict in WRONG for finding in self.findings)

    @property
    def _consequences(self) -> list[Cause]:
        """Causes of wrong logged numbers without an explanation, if gradients are wrong too."""
        if not any(cause.severity is Severity.GRADIENT for cause in self.causes):
            return []
        return [
            cause
            for cause in self.causes
            if cause.severity is Severity.LOGGED and cause.name == UNEXPLAINED
        ]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        wrong = sum(finding.verdict in WRONG for finding in self.findings)
        mode, total = self.cells[0].aggregation.mode, len(self.findings)
        if not wrong:
            yield f"the trainer is right: all of {total} findings conform to {mode}"
        else:
            yield f"the trainer is not {mode}: {wrong} of {total} findings are wrong"
        for cause in self.causes:
            if cause not in self._consequences:
                yield from self._cause_lines(cause)
        if self._consequences:
            logged = sum(len(cause.findings) for cause in self._consequences)
            yield f"{logged} logged numbers are wrong as well, which may follow from it"
        if self.trace is not None:
            yield self._smallest(self.trace.finding)
            yield from (f"  {line}" for line in as_text(self.trace))

    def _smallest(self, finding: str) -> str:
        """A sentence on the smallest step that shows the worst cause, which was traced."""
        [cell] = [one for one in self.cells if one.id == finding]
        tokens = ", ".join(map(str, cell.case.steps[0].active_tokens))
        ranks, micro_batches = cell.layout.dp, cell.layout.micro_batches
        return (
            f"the smallest step that shows it has samples of {tokens} active tokens, on"
            f" {ranks} {'rank' if ranks == 1 else 'ranks'}, each with {micro_batches}"
            f" {'micro-batch' if micro_batches == 1 else 'micro-batches'}:"
        )

    def _cause_lines(self, cause: Cause) -> Iterator[str]:
        by_id = {finding.id: finding for finding in self.findings}
        example = by_id[cause.findings[0]]
        count, symbol = len(cause.findings), SYMBOLS[example.verdict]
        yield f"{symbol} {count} × {cause.statement} [{cause.name}]"
        said = str(cause.impact)
        yield f"  {cause.severity}{f': {said}' if said else ''}"
        yield f"  for example {example.id}: {explain(example)}"
