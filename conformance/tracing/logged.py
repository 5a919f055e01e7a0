"""Traces a token in the policy loss that a framework logs, to the number that it reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.altered import painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric
from conformance.expected.loss_terms import logged_terms
from conformance.findings.errors import NotTracedError
from conformance.judging.weights import step_context
from conformance.ranks.pool import Ran
from conformance.tracing.tracer import Token, TracedJob, place_of, tokens_of_steps
from reference.rounding import reported_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Job, Observation
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed, RankPool

MOST_TRIED = 4
"""Tokens that are tried until one has a wrong part of the logged number."""


def trace_logged(
    job: Job, pool: RankPool, token: Token | None = None
) -> TracedJob | Crashed | Declined:
    """Trace a token of a job to the logged policy loss, by default the first that is found wrong.

    Raises:
        NotTracedError: the job has no such token, or no rank logs the loss.
    """
    ordinary = pool.run(job)
    if not isinstance(ordinary, Ran):
        return ordinary
    tried = [token] if token is not None else _candidates(job)
    traced: TracedJob | Crashed | Declined | None = None
    for one in tried:
        traced = _traced(job, pool, one, ordinary.observations)
        if not isinstance(traced, TracedJob) or traced.is_wrong:
            return traced
    if traced is None:
        raise NotTracedError("no token of this batch is active")
    return traced


def _candidates(job: Job) -> list[Token]:
    """The first active token of each sample, those of the largest samples first."""
    active = [
        (int(step.mask[start : start + length].sum()), tokens[start + int(first)])
        for step, tokens in zip(job.steps, tokens_of_steps(job), strict=True)
        for start, length in zip(step.offsets, step.response_lengths, strict=False)
        for first in np.flatnonzero(step.mask[start : start + length])[:1]
    ]
    return [token for _, token in sorted(active, key=lambda one: -one[0])][:MOST_TRIED]


def _traced(
    job: Job, pool: RankPool, token: Token, ordinary: Sequence[Observation]
) -> TracedJob | Crashed | Declined:
    step_index, place = place_of(job, token)
    painted = pool.run(replace(job, painted=token))
    if not isinstance(painted, Ran):
        return painted
    of_ranks = [one.reported.get(Metric.POLICY_LOSS, ()) for one in painted.observations]
    reported = [of_steps[step_index] for of_steps in of_ranks if step_index < len(of_steps)]
    values = [one for one in reported if one is not None]
    if not values:
        raise NotTracedError("no rank logs the policy loss")
    description = pool.description
    with painting(token):
        batch = ProbedBatch.of(job, description.conventions)
        loss = float(batch.split(batch.dloss_dlogprob)[step_index][place])
    context = step_context(job, step_index, ordinary, description)
    [term] = logged_terms(context, job.objective, Metric.POLICY_LOSS)
    value = max(values, key=abs)
    return TracedJob(
        token=token,
        context=term.context,
        place=place,
        observed=value / loss,
        traced=value / loss,
        derivative=1.0,
        tolerance=reported_bound(int(job.steps[step_index].mask.sum()), description.dtype, 0),
        traces=painted.traces,
        logged=value,
    )
