"""Advises where a framework fails with a batch that the code which makes its batches excludes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import BatchProperty
from conformance.findings.finding import Diagnosis
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Description, Job


def advice_on_crash(job: Job, message: str, description: Description) -> Judgement | None:
    """Advice if a batch that made a step crash is one that the framework never makes itself.

    Code with which a user replaces the framework's may make one all the same.
    """
    for found in _properties(job):
        place = description.never_made.get(found)
        if place is not None:
            words = (
                f"a batch with {found} crashes, which {place} never makes, and code of a user's in"
                f" its place may: {first_line(message)}"
            )
            return Judgement(
                verdict=Verdict.ADVICE,
                diagnosis=Diagnosis(name="never_made", explanation=words),
                message=message,
            )
    return None


def _properties(job: Job) -> Iterator[BatchProperty]:
    """Yield what is true of a job's batch before the framework rejects any tokens."""
    before = [
        step.mask_before_rejection[tokens].any() for step in job.steps for tokens in step.responses
    ]
    if not all(before):
        yield BatchProperty.EMPTY_SAMPLE
