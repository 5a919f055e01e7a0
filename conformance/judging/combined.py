"""Judges the gradient of a loss with several terms, each with its own aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.probed_batch import ProbedBatch
from conformance.causes.consistent import Showing
from conformance.diagnosis.explain import Evidence, diagnose, likeliest, without_gradient
from conformance.diagnosis.shared_mistakes import diagnose_shared_mistake
from conformance.findings.agreement import agreement, direction
from conformance.findings.verdict import Verdict
from conformance.judging import loss_terms
from conformance.judging.picture import picture
from conformance.judging.weights import (
    Judgement,
    final_weights,
    judge_showings,
    step_context,
)
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.diagnosis.step_context import LossTerm
    from conformance.findings.finding import Diagnosis


def judge_combined(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge the sum of the terms' gradients, token by token.

    The error of a token is relative to the sum of its terms' absolute values, as terms may cancel.
    """
    tolerance = weight_bound(description.dtype, terms=len(loss_terms.COMBINED))
    batch = ProbedBatch(job.steps, job.objective)
    showings: list[Showing] = []
    for step_index, dloss_dlogprob in enumerate(batch.split(batch.dloss_dlogprob)):
        context = step_context(job, step_index, observations, description)
        terms = loss_terms.combined_terms(context, dloss_dlogprob)
        showings += (
            Showing(terms=terms, observed=weights * dloss_dlogprob, tolerance=tolerance)
            for weights in final_weights(observations, step_index, job, description.conventions)
        )
    return judge_showings(showings, _error, _wrong)


def _error(showing: Showing) -> float | None:
    off = np.abs(showing.observed - showing.expected)
    if not np.isfinite(off).all():
        return None
    active = showing.magnitude > 0
    leaked = 1.0 if off[~active].any() else 0.0
    return float(max((off[active] / showing.magnitude[active]).max(initial=0.0), leaked))


def _wrong(showing: Showing) -> Judgement:
    off, magnitude = showing.observed - showing.expected, showing.magnitude
    scale, cosine = direction(showing.observed, showing.expected)
    return Judgement(
        verdict=Verdict.MISMATCH,
        scale=scale,
        cosine=cosine,
        agreement=agreement(showing.observed, showing.expected, magnitude),
        diagnosis=_diagnosis(off, magnitude, showing.terms, showing.tolerance),
        picture=picture(showing.context, showing.observed, showing.expected),
    )


def _diagnosis(
    off: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    terms: Sequence[LossTerm],
    tolerance: float,
) -> Diagnosis:
    """The mistake in one term if the others are right, or in several."""
    for term in terms:
        if (np.abs(off + term.products) <= tolerance * magnitude).all():
            return without_gradient(term.metric)
    alone = likeliest((term.metric, _of_term(off, magnitude, term, tolerance)) for term in terms)
    if alone.name != "unexplained":
        return alone
    observed = off + np.sum([term.products for term in terms], axis=0)

    def matches(predicted: NDArray[np.float64]) -> bool:
        return bool((np.abs(observed - predicted) <= tolerance * magnitude).all())

    return diagnose_shared_mistake(terms[0], terms[1:], matches) or alone


def _of_term(
    off: NDArray[np.float64], magnitude: NDArray[np.float64], term: LossTerm, tolerance: float
) -> Diagnosis:
    """The diagnosis if one term alone is wrong; the bound is that of all terms."""
    gradient = np.abs(term.products)
    active = gradient > 0
    amplified = float((magnitude[active] / gradient[active]).max(initial=1.0))
    observed = term.context.expected + off / term.factors
    return diagnose(
        Evidence(context=term.context, observed=observed, tolerance=tolerance * amplified)
    )
