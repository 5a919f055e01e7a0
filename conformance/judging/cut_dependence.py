"""Advises on terms of the loss that depend on how a step is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Documented
from conformance.expected import loss_terms
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, step_context
from reference.aggregation import AuxiliaryAggregation
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Description, Job, Observation
    from adapters.contract.objective import Objective
    from reference.aggregation import Conventions

OF_THE_STEP = {
    AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN: AuxiliaryAggregation.TOKEN_MEAN,
    AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN: AuxiliaryAggregation.SAMPLE_MEAN,
}
"""The aggregation of the whole step that each mean over micro-batches approximates."""


def depends_on_cuts(objective: Objective, conventions: Conventions) -> bool:
    """Whether an objective's term is declared to be averaged over micro-batches."""
    return _aggregation(objective, conventions) in OF_THE_STEP


def _aggregation(objective: Objective, conventions: Conventions) -> AuxiliaryAggregation:
    aggregation = loss_terms.reducer(objective, conventions)
    assert aggregation is not None, "the objective has an auxiliary term"
    return aggregation


def judge_cut_dependence(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Advice on a term that is averaged over micro-batches, with the figures of this cut.

    A mean over samples conforms if micro-batches weigh by their samples. The term must be one that
    `depends_on_cuts`.
    """
    of_the_step = OF_THE_STEP[_aggregation(job.objective, description.conventions)]
    placement = step_context(job, 0, observations, description)
    whole = placement.of_term(of_the_step)
    active = whole.expected > 0
    ratios = placement.expected[active] / whole.expected[active]
    low, high = float(ratios.min()), float(ratios.max())
    tolerance = weight_bound(description.dtype)
    if max(high - 1, 1 - low) <= tolerance:
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=tolerance)
    declared = description.declared[job.objective]
    source = "which no document of the framework says"
    if isinstance(declared, Documented):
        source = f"as {declared.where} says"
    explanation = (
        f"the {job.objective} term is averaged over micro-batches and workers, {source}, so that it"
        f" depends on how a step is cut: here a token weighs {low:.4g} to {high:.4g} times what a"
        f" {of_the_step} of the whole step gives it"
    )
    return Judgement(
        verdict=Verdict.ADVICE,
        diagnosis=Diagnosis(
            name="depends_on_cut",
            explanation=explanation,
            numbers={"lowest_ratio": low, "highest_ratio": high},
        ),
    )
