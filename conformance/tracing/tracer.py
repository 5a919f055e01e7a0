"""Runs the job of a finding twice: as it is, and with one painted token that is recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.batch.altered import PAINT, painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import (
    NORMALISED,
    OFF_POLICY,
    ONE_ADVANTAGE,
    SELECTING,
    Metric,
    Objective,
)
from conformance.findings.errors import NotTracedError
from conformance.findings.verdict import Check
from conformance.judging.weights import final_weights, step_context
from conformance.ranks.pool import Ran
from reference.rounding import ratio_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Description, Job, Observation
    from conformance.expected.step_context import StepContext
    from conformance.findings.trace import RankTrace
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed, RankPool

TRACED = frozenset({Objective.POLICY, Objective.REJECTION, *OFF_POLICY}).difference(
    ONE_ADVANTAGE,
    NORMALISED,
    SELECTING,
    {Objective.KL_COV, Objective.CLIP_COV, Objective.DRO},
)
"""Objectives whose token losses are proportional to the token's own advantage."""

CHECKED = frozenset({Check.WEIGHTS, Check.REJECTION, Check.OFF_POLICY})
"""Checks of the gradient that such losses have."""


MOST_TOKENS = 4096
"""Tokens of the largest batch that is traced: every operation on them is kept in memory."""


class Token(NamedTuple):
    """A token of a batch: its sample, counted over all steps, and its place in the response."""

    sample: int
    token: int

    def __str__(self) -> str:
        return f"{self.sample}:{self.token}"


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedJob:
    """The weight of one token in an ordinary run of a job, and the operations of a traced one."""

    token: Token
    context: StepContext
    """Of the step that has the token."""

    place: int
    """The place of the token among the tokens of its step."""

    observed: float
    traced: float
    """Its weight in the job that is traced, in which it alone has an advantage."""

    derivative: float = 1.0
    """Of the token's loss by its log-probability, in the traced job, relative to its advantage."""

    tolerance: float
    traces: tuple[RankTrace, ...]

    logged: float | None = None
    """The policy loss that the traced job logs, if it is traced to that and not to its gradient."""

    @property
    def expected(self) -> float:
        """The reference's weight of the token."""
        return float(self.context.expected[self.place])

    @property
    def is_wrong(self) -> bool:
        """Whether the observed weight is not the reference's."""
        return not abs(self.observed - self.expected) <= self.tolerance * self.expected


def is_traced(cell: MatrixCell) -> bool:
    """Whether the painted token of a cell's job tells what its weights, or its log, are made of."""
    tokens = sum(len(step.mask) for step in cell.case.steps)
    is_checked = cell.spec.check in CHECKED and cell.spec.objective in TRACED
    is_checked &= cell.spec.metric is None
    return (is_checked or is_of_log(cell)) and tokens <= MOST_TOKENS


def is_of_log(cell: MatrixCell) -> bool:
    """Whether a cell is about the policy loss that is logged, with ratios of 1."""
    is_plain = cell.spec.check is Check.METRIC and cell.spec.metric is Metric.POLICY_LOSS
    return is_plain and cell.spec.objective is Objective.POLICY


def trace(job: Job, pool: RankPool, token: Token | None = None) -> TracedJob | Crashed | Declined:
    """Trace a token of a job, by default the one whose weight is most wrong.

    Raises:
        NotTracedError: the job has no such token.
    """
    ordinary = pool.run(job)
    if not isinstance(ordinary, Ran):
        return ordinary
    description = pool.description
    chosen = token or most_wrong(job, ordinary.observations, description)
    step_index, place = place_of(job, chosen)
    painted = pool.run(replace(job, painted=chosen))
    if not isinstance(painted, Ran):
        return painted

    with painting(chosen):
        batch = ProbedBatch.of(job, description.conventions)
        derivative = float(batch.split(batch.dloss_dlogprob)[step_index][place]) / PAINT

    def weight(observations: Sequence[Observation]) -> float:
        of_ranks = final_weights(observations, step_index, job, description.conventions)
        return max((float(weights[place]) for weights in of_ranks), key=abs)

    return TracedJob(
        token=chosen,
        context=step_context(job, step_index, ordinary.observations, description),
        place=place,
        observed=weight(ordinary.observations),
        traced=weight(painted.observations),
        derivative=abs(derivative),
        tolerance=_tolerance(job, step_index, description),
        traces=painted.traces,
    )


def _tolerance(job: Job, step_index: int, description: Description) -> float:
    """The bound on the relative error of a weight."""
    if job.objective not in OFF_POLICY:
        return weight_bound(description.dtype)
    return ratio_bound(description.dtype, int(job.steps[step_index].active_tokens.max()))


def most_wrong(job: Job, observations: Sequence[Observation], description: Description) -> Token:
    """The token whose weight is off by most of itself, of those whose loss is not clipped.

    Of equals it is one that has a weight at all, of the sample with most tokens: its counts are the
    easiest to tell from others.
    """
    errors: list[tuple[float, bool, int, Token]] = []
    batch = ProbedBatch.of(job, description.conventions)
    derivatives = batch.split(batch.dloss_dlogprob)
    for step_index, tokens in enumerate(tokens_of_steps(job)):
        context = step_context(job, step_index, observations, description)
        expected, counted = context.expected, context.counted[context.sample]
        for observed in final_weights(observations, step_index, job, description.conventions):
            off = np.abs(np.nan_to_num(observed, nan=np.inf) - expected)
            relative = off / np.where(expected, expected, expected.max(initial=1.0))
            errors += [
                (
                    round(float(relative[place]), 5),
                    bool(observed[place]),
                    int(counted[place]),
                    token,
                )
                for place, token in enumerate(tokens)
                if derivatives[step_index][place]
            ]
    return max(errors, key=lambda error: (*error[:3], [-one for one in error[3]]))[3]


def tokens_of_steps(job: Job) -> Iterator[list[Token]]:
    """Yield the tokens of each step, in the order of its flat arrays."""
    first = 0
    for step in job.steps:
        yield [
            Token(first + sample, token)
            for sample, length in enumerate(step.response_lengths.tolist())
            for token in range(length)
        ]
        first += step.size


def place_of(job: Job, token: Token) -> tuple[int, int]:
    """The step of a token, and its place among the step's tokens.

    Raises:
        NotTracedError: the job has no such token.
    """
    for step_index, tokens in enumerate(tokens_of_steps(job)):
        if token in tokens:
            return step_index, tokens.index(token)
    raise NotTracedError(
        f"{token} is no token of this batch", "name a sample and a token of its response, from 0"
    )
