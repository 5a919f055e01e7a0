"""Complaints to an adapter's author: each is one mistake, read from an outcome or a finding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conformance.findings.badness import explain
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import WRONG, Verdict
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed

if TYPE_CHECKING:
    from conformance.findings.finding import Finding

LINES_OF_A_CRASH = 6
"""The number of last lines that are quoted from a crash."""

NOT_DELIVERED = "declared_and_not_delivered"

FAULTS_OF_THE_ADAPTER = {
    "not_logged": NOT_DELIVERED,
    "forward_passes_not_recorded": "forward_passes_not_recorded",
    "configuration_ignored": "configuration_ignored",
}
"""The names of complaints, by the mistakes in findings that only an adapter can make."""

HINTS = {
    "optimizer steps were made of": "every job must start with an empty GradientReader and read"
    " the gradient once in each optimizer step: drain it in every job, also after one that failed",
    "out of bounds": "the probe needs ProbedBatch.probe_size entries, and padding an id in it",
}
"""Advice on a crash whose message contains certain words."""


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """One mistake, probably of the adapter.

    ``where`` is the job or the finding that shows the mistake. ``of_adapter`` is False if the
    mistake may also be the framework's.
    """

    name: str
    where: str
    words: str
    of_adapter: bool = True


def outcome_complaint(outcome: Declined | Crashed, where: str) -> Complaint:
    """The complaint about a job of declared capabilities that did not run."""
    if not isinstance(outcome, Declined):
        return Complaint(name=outcome.verdict.value, where=where, words=_crash(outcome.message))
    if outcome.verdict == "unsupported":
        words = "describe() declares all that this job needs, and observe() raised Unsupported:"
        return Complaint(name=NOT_DELIVERED, where=where, words=f"{words} {outcome.message}")
    words = f"an ordinary step is refused: {outcome.message}"
    return Complaint(name="refused", where=where, words=words)


def finding_complaint(finding: Finding) -> Complaint | None:
    """The complaint about a finding of a declared capability; None if nothing is wrong."""
    message = finding.message or ""
    if finding.verdict is Verdict.UNSUPPORTED:
        return outcome_complaint(Declined("unsupported", message), finding.id)
    if finding.verdict is Verdict.NOT_DRIVEN:
        return Complaint(name=NOT_DELIVERED, where=finding.id, words=_crash(message))
    if finding.verdict not in WRONG:
        return None
    if finding.verdict is Verdict.MISMATCH:
        return _mismatch_complaint(finding)
    declined = finding.verdict is Verdict.DECLINED
    outcome = Declined("refused", message) if declined else Crashed(message)
    return replace(outcome_complaint(outcome, finding.id), of_adapter=False)


def _mismatch_complaint(finding: Finding) -> Complaint:
    name = finding.diagnosis.name if finding.diagnosis else "unexplained"
    return Complaint(
        name=FAULTS_OF_THE_ADAPTER.get(name, name),
        where=finding.id,
        words=explain(finding),
        of_adapter=name in FAULTS_OF_THE_ADAPTER,
    )


def _crash(message: str) -> str:
    """The last lines of a crash, with a hint if the crash is a known one."""
    hints = [hint for words, hint in HINTS.items() if words in message]
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    return "\n".join([*hints, *lines[-LINES_OF_A_CRASH:]]) or first_line(message)
