"""Advises where a mode that a user sets is ignored, as the framework documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement
from reference.aggregation import Aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
