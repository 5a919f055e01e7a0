"""Advises instead of accusing where a framework does what it documents.

Two cases are advice: a framework documents that a loss always uses one mode, or a batch that
crashes is one that the framework's own code never makes. If an option changes nothing, the mistake
is named after the option.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from adapters.contract import BatchProperty
from conformance.explain.catalogue.mistake import MISTAKES, OPTION_IGNORED, commonness
from conformance.findings.finding import Diagnosis
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, advice
from reference.aggregation import Aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.contract import Description, Job
    from conformance.findings.cause import Clues
    from conformance.judging.weights import Trained
    from reference.aggregation import Mode

    Judge = Callable[[Trained], Judgement]


def judge_by_fixed_mode(judge: Judge, trained: Trained) -> Judgement:
    """The judgement of a job whose objective, by the framework's documents, has a fixed mode.

    A framework that uses the job's mode all the same conforms. A framework that uses the fixed mode
    conforms to its documents, and its users are advised that the job's mode is ignored.
    """
    job = trained.job
    fixed = trained.description.fixed_modes.get(job.objective)
    as_set = judge(trained)
    if fixed is None or fixed.mode is job.aggregation.mode or as_set.verdict is Verdict.CONFORMS:
        return as_set
    as_fixed = replace(job, aggregation=Aggregation(fixed.mode))
    judgement = judge(replace(trained, job=as_fixed))
    if judgement.verdict is not Verdict.CONFORMS:
        return judgement
    explanation = (
        f"{job.objective} has the weights of {fixed.mode}, whatever mode is set, as {fixed.place}"
        f" says: {job.aggregation.mode} is ignored"
    )
    ignored = Diagnosis(name=OPTION_IGNORED, explanation=explanation)
    return advice(ignored, judgement.expected)


def named_after_option(judgement: Judgement, job: Job, description: Description) -> Judgement:
    """The judgement; a mismatch by an option that changes nothing is named after the option."""
    diagnosis = judgement.diagnosis
    if diagnosis is None or judgement.verdict is not Verdict.MISMATCH:
        return judgement
    besides = _second_mistake(judgement.clues)
    typed: tuple[str, ...] = ()
    if OPTION_IGNORED in (diagnosis.name, *diagnosis.also) or besides:
        typed = description.chosen_by.get(job.objective, ())
    elif _is_of_the_mode(judgement, description.default_mode):
        typed = description.chosen_by.get(job.aggregation.mode, ())
    if not typed:
        return judgement
    says = MISTAKES[diagnosis.name].says
    if besides:
        says = f"besides, {MISTAKES[besides].says}"
    elif diagnosis.name == OPTION_IGNORED:
        says = "the gradient is that of PPO's loss"
    named = Diagnosis(
        name=OPTION_IGNORED,
        explanation=f"{' '.join(typed)} is accepted and changes nothing: {says}",
    )
    clues = judgement.clues and judgement.clues.model_copy(update={"explanations": []})
    return replace(judgement, diagnosis=named, clues=clues)


def _is_of_the_mode(judgement: Judgement, mode: Mode) -> bool:
    """Whether a mode's weights explain a mismatch, for a logged number as the only explanation."""
    name = f"weights_of_{mode}"
    explanations = [] if judgement.clues is None else judgement.clues.by_mistake
    is_only = judgement.logged is None or all({name} in parts for parts in explanations)
    return judgement.diagnosis is not None and judgement.diagnosis.name == name and is_only


def _second_mistake(clues: Clues | None) -> str | None:
    """The likeliest mistake besides an option that changes nothing.

    None if there is an explanation in which the option does what it should.
    """
    explanations = [] if clues is None else clues.by_mistake
    if not all(any(OPTION_IGNORED in part for part in parts) for parts in explanations):
        return None
    others = (part for parts in explanations for part in parts if OPTION_IGNORED not in part)
    return min(chain.from_iterable(others), key=commonness, default=None)


def advice_on_crash(job: Job, message: str, description: Description) -> Judgement | None:
    """Advice if a batch that made a step crash is one that the framework never makes itself.

    A user's replacement for the framework's code may still make such a batch.
    """
    for found in _properties(job):
        place = description.never_made.get(found)
        if place is not None:
            words = (
                f"a batch with {found} crashes, which {place} never makes, and code of a user's in"
                f" its place may: {first_line(message)}"
            )
            return replace(advice(Diagnosis(name="never_made", explanation=words)), message=message)
    return None


def _properties(job: Job) -> Iterator[BatchProperty]:
    """Yield the properties of a job's batch before the framework rejects any tokens."""
    before = [
        step.mask_before_rejection[tokens].any() for step in job.steps for tokens in step.responses
    ]
    if not all(before):
        yield BatchProperty.EMPTY_SAMPLE
