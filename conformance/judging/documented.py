"""Advises instead of accusing where a framework documents what it does, or never makes a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import BatchProperty
from conformance.findings.finding import Diagnosis
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement
from reference.aggregation import Aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from adapters.contract import Description, Job, Observation

    Judge = Callable[[Job, Sequence[Observation], Description], Judgement]


def judge_by_fixed_mode(
    judge: Judge, job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """The judgement of a job, by the mode that the framework documents its objective to have.

    A framework that heeds the mode of the job all the same conforms. One that ignores it conforms
    to its documents, and its users are advised of it.
    """
    fixed = description.fixed_modes.get(job.objective)
    as_set = judge(job, observations, description)
    if fixed is None or fixed.mode is job.aggregation.mode or as_set.verdict is Verdict.CONFORMS:
        return as_set
    as_fixed = replace(job, aggregation=Aggregation(fixed.mode))
    judgement = judge(as_fixed, observations, description)
    if judgement.verdict is not Verdict.CONFORMS:
        return judgement
    explanation = (
        f"{job.objective} has the weights of {fixed.mode}, whatever mode is set, as {fixed.place}"
        f" says: {job.aggregation.mode} is ignored"
    )
    return Judgement(
        verdict=Verdict.ADVICE,
        diagnosis=Diagnosis(name="option_ignored", explanation=explanation),
        expected=judgement.expected,
    )


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
