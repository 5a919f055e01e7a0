"""Runs the job of a finding unchanged, then with a painted token, and finally records a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract.batch.altered import SELECTED, painted_value, painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Column, Paint
from adapters.contract.objective import (
    COMPARING_ADVANTAGES,
    OF_ROLLOUT_RATIOS,
    OF_TERMS,
    OFF_POLICY,
    ONE_ADVANTAGE,
    WITH_REJECTION,
    Metric,
    Objective,
)
from conformance.expected.loss_terms import logged_terms
from conformance.findings.errors import NotTracedError
from conformance.judging.startup import reducer_weights
from conformance.judging.weights import final_weights, step_context
from conformance.ranks.pool import Ran
from conformance.tracing.columns import columns_of, contribution
from conformance.tracing.traced import Token, TracedJob, first_of_samples, place_of, tokens_of_steps
from reference.rounding import TERM_OPERATIONS, ratio_bound, reported_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.expected.step_context import StepContext
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed, RankPool

MOST_TRIED = 12
"""The most painted jobs that are tried to find a token with a wrong share."""

MOST_SAMPLES = 6
"""The most samples whose first tokens are tried for a logged number."""


_Traced = TypeVar("_Traced", bound="TracedJob")


def trace(
    job: Job, pool: RankPool, token: Token | None = None, metric: Metric | None = None
) -> TracedJob | Crashed | Declined:
    """Trace a token of a job to its gradient, or to a logged number.

    By default, it is the token whose weight is most wrong, or the first token whose share in the
    number is wrong. A number that is not a sum over a painted column, such as a fraction of tokens,
    is traced as a whole.

    Raises:
        NotTracedError: the job lacks the token, or no rank logs the number.
    """
    if metric is not None and not columns_of(job.objective, metric):
        return recorded(_of_number(job, pool, metric), pool)
    of_terms = metric is None and job.objective in OF_TERMS
    return recorded(
        _of_terms(job, pool, token) if of_terms else _of_one(job, pool, token, metric), pool
    )


def recorded(traced: _Traced | Crashed | Declined, pool: RankPool) -> _Traced | Crashed | Declined:
    """The traced job with its recorded operations; its failure if it does not run."""
    if not isinstance(traced, TracedJob):
        return traced
    ran = pool.run(replace(traced.job, is_recorded=True))
    if not isinstance(ran, Ran):
        return ran
    name = pool.description.logged_as.get(traced.metric, "") if traced.metric else ""
    return replace(traced, traces=ran.traces, logged_as=name)


def _of_one(
    job: Job, pool: RankPool, token: Token | None, metric: Metric | None = None
) -> TracedJob | Crashed | Declined:
    """Trace a token of a job with a single term, or in a logged number."""
    ordinary = pool.run(job)
    if not isinstance(ordinary, Ran):
        return ordinary
    way = _ToLog if metric is not None else _ToGradient
    tracer = way(job, pool, ordinary.observations, metric)
    tokens = [token] if token is not None else tracer.candidates()
    columns = columns_of(job.objective, metric)
    right: list[TracedJob] = []
    for term, one in islice(product(columns, tokens), MOST_TRIED):
        traced = tracer.traced(one, term, columns[term])
        if not isinstance(traced, TracedJob) or traced.is_wrong:
            return traced
        right.append(traced)
    if not right:
        raise NotTracedError("no token of this batch is active")
    return right[0]


def _of_number(job: Job, pool: RankPool, metric: Metric) -> TracedJob | Crashed | Declined:
    """Trace a logged number as a whole, in the step and on the rank where it is most wrong."""
    ran = pool.run(job)
    if not isinstance(ran, Ran):
        return ran
    tracer = _ToLog(job, pool, ran.observations, metric)
    steps = [index for index, step in enumerate(job.steps) if step.mask.any()]
    found = [tracer.whole(index) for index in steps]
    if not found:
        raise NotTracedError("no token of this batch is active")
    return max(found, key=lambda one: abs(one.observed - one.expected))


def _of_terms(job: Job, pool: RankPool, token: Token | None) -> TracedJob | Crashed | Declined:
    """Trace a token in the first term of an objective that is wrong when trained alone.

    Terms are trained alone because painting cannot remove the gradients of the other terms.
    """
    policy = Objective.REJECTION if job.objective in WITH_REJECTION else Objective.POLICY
    for objective in (policy, Objective.ENTROPY, Objective.KL):
        traced = _of_one(replace(job, objective=objective), pool, token)
        if isinstance(traced, TracedJob) and traced.is_wrong:
            break
    return traced


@dataclass(frozen=True, eq=False)
class _Tracer:
    """Runs a job in which one token is painted."""

    job: Job
    pool: RankPool
    ordinary: Sequence[Observation]
    metric: Metric | None

    @property
    def _description(self) -> Description:
        return self.pool.description

    def _batch(self) -> ProbedBatch:
        return ProbedBatch.of(self.job, self._description.conventions)

    def _context(self, step_index: int) -> StepContext:
        return step_context(self.job, step_index, self.ordinary, self._description)

    def _weights(self, observations: Sequence[Observation], step_index: int) -> NDArray[np.float64]:
        """The weights of a step's tokens on each rank with gradients: [ranks, tokens]."""
        conventions = self._description.conventions
        return np.array(final_weights(observations, step_index, self.job, conventions))


class _ToGradient(_Tracer):
    """Traces a token to its gradient."""

    def candidates(self) -> list[Token]:
        """The token whose weight is most wrong."""
        return [most_wrong(self.job, self.ordinary, self._description)]

    def _expected(self, step_index: int) -> list[float]:
        """The right weights of tokens; 0 for tokens whose loss must have no gradient."""
        step, mode = self.job.steps[step_index], self.job.aggregation.mode
        if self.job.configuration.reduces:
            weights = reducer_weights(step, mode)
        else:
            weights = self._context(step_index).expected
        batch = self._batch()
        has_gradient = batch.split(batch.dloss_dlogprob)[step_index] != 0
        return list(np.where(has_gradient, weights, 0.0))

    def traced(
        self, token: Token, term: Metric | Objective, column: Column
    ) -> TracedJob | Crashed | Declined:
        """The job with the token painted in a column."""
        step_index, place = place_of(self.job, token)
        is_selected = column is not Column.ADVANTAGES or self.job.objective in ONE_ADVANTAGE
        ids = self._batch().responses[token.sample]
        paint = Paint(*token, column, int(ids[token.token]) if is_selected else None)
        job = replace(self.job, painted=paint)
        painted = self.pool.run(job)
        if not isinstance(painted, Ran):
            return painted
        with painting(paint):
            batch = self._batch()
            derivative = abs(float(batch.split(batch.dloss_dlogprob)[step_index][place]))
            log_ratio = batch.policy_tokens_of_step(step_index).log_ratios[place]
        of_tokens = self._weights(painted.observations, step_index)
        if column is Column.ADVANTAGES and not derivative:  # the weight is the gradient
            plain = self._batch()
            advantages = plain.split(np.concatenate(plain.raw_advantages))[step_index]
            derivative = painted_value(column) / abs(float(advantages[place]))
            of_tokens = of_tokens / derivative
        unit, loss = SELECTED if is_selected else 1.0, contribution(batch, column, derivative)
        of_tokens = of_tokens / unit
        context = self._context(step_index)
        right = self._expected(step_index)[place]
        traced = _farthest(of_tokens[:, place], right)
        # An ordinary weight also has the term of the advantages, not only kl_cov's penalty.
        is_part = column is Column.OLD_LOG_PROBS
        return TracedJob(
            job=job,
            token=token,
            column=column,
            context=context,
            place=place,
            expected=right,
            observed=traced
            if is_part
            else _farthest(self._weights(self.ordinary, step_index)[:, place], right),
            is_nowhere=not of_tokens[:, place].any(),
            traced=traced,
            derivative=loss / painted_value(column),
            ratio=math.exp(log_ratio) if job.objective in OF_ROLLOUT_RATIOS else 1.0,
            gradient_unit=derivative * unit / loss if loss else 1.0,
            tolerance=_tolerance(job, step_index, self._description),
        )


class _ToLog(_Tracer):
    """Traces a token to a logged number."""

    def candidates(self) -> list[Token]:
        """The first active tokens, alternating between the samples with most and fewest of them.

        Last come tokens that must have no share: the first rejected and the first masked ones.
        """
        steps = self.job.steps
        active = sorted(
            first_of_samples(self.job, [step.mask for step in steps]), key=lambda one: -one[0]
        )
        tokens = [token for _, token in active]
        in_turn = chain.from_iterable(zip(tokens, reversed(tokens), strict=True))
        rejected = first_of_samples(
            self.job, [step.mask_before_rejection & ~step.mask for step in steps]
        )
        masked = first_of_samples(self.job, [~step.mask_before_rejection for step in steps])
        kept = [*dict.fromkeys(in_turn)][:MOST_SAMPLES]
        return [*kept, *(token for _, token in (*rejected, *masked))]

    def traced(
        self, token: Token, term: Metric | Objective, column: Column
    ) -> TracedJob | Crashed | Declined:
        """The job with the token painted in a column."""
        assert self.metric is not None
        step_index, place = place_of(self.job, token)
        paint = Paint(*token, column)
        job = replace(self.job, painted=paint)
        painted = self.pool.run(job)
        if not isinstance(painted, Ran):
            return painted
        with painting(paint):
            terms = logged_terms(self._context(step_index), self.job.objective, self.metric)
        [of_term] = [one for one in terms if one.metric is term]
        quantity = float(of_term.factors[place])
        if not quantity:
            raise NotTracedError(f"{token} adds nothing to {self.metric}")
        right = quantity * float(of_term.context.expected[place])
        reported = self._reported(painted.observations, step_index)
        rank, value = max(reported, key=lambda one: abs(one[1] - right))
        return TracedJob(
            job=job,
            token=token,
            column=column,
            context=of_term.context,
            place=place,
            expected=float(of_term.context.expected[place]),
            observed=value / quantity,
            traced=value / quantity,
            derivative=abs(quantity) / painted_value(column),
            tolerance=self._tolerance_of_log(step_index),
            metric=self.metric,
            logged=value,
            rank=rank,
            is_trained_right=column is Column.ADVANTAGES and self._trains(step_index, place),
        )

    def whole(self, step_index: int) -> TracedJob:
        """The traced job for the number that is logged for a step, as a whole."""
        assert self.metric is not None
        terms = logged_terms(self._context(step_index), self.job.objective, self.metric)
        right = float(sum(one.expected for one in terms))
        reported = self._reported(self.ordinary, step_index)
        rank, value = max(reported, key=lambda one: abs(one[1] - right))
        place = int(np.flatnonzero(self.job.steps[step_index].mask)[0])
        return TracedJob(
            job=self.job,
            token=[*tokens_of_steps(self.job)][step_index][place],
            column=Column.LOG_PROBS,
            context=terms[0].context,
            place=place,
            expected=right,
            observed=value,
            traced=value,
            tolerance=self._tolerance_of_log(step_index),
            metric=self.metric,
            logged=value,
            rank=rank,
        )

    def _tolerance_of_log(self, step_index: int) -> float:
        """The bound on the relative error of a share; shares are exact if ratios are 1."""
        is_exact = self.job.objective is Objective.POLICY
        return reported_bound(
            int(self.job.steps[step_index].mask_before_rejection.sum()),
            self._description.dtype,
            0 if is_exact else TERM_OPERATIONS,
        )

    def _trains(self, step_index: int, place: int) -> bool:
        """Whether the token has the right weight in the gradient of the unchanged run."""
        if not any(one.token_weights for one in self.ordinary):
            return False
        right = float(self._context(step_index).expected[place])
        of_ranks = self._weights(self.ordinary, step_index)[:, place]
        bound = _tolerance(self.job, step_index, self._description) * right
        return abs(_farthest(of_ranks, right) - right) <= bound

    def _reported(
        self, observations: Sequence[Observation], step_index: int
    ) -> list[tuple[int, float]]:
        """The numbers that ranks log for a step, each with its rank."""
        assert self.metric is not None
        of_ranks = [one.reported.get(self.metric, ()) for one in observations]
        reported = [
            (rank, value)
            for rank, of_steps in enumerate(of_ranks)
            for value in of_steps[step_index : step_index + 1]
            if value is not None
        ]
        if not reported:
            raise NotTracedError(f"no rank logs {self.metric}")
        return reported


def _farthest(of_ranks: NDArray[np.float64], right: float) -> float:
    """The weight of a token on the rank where it is most wrong."""
    return float(of_ranks[np.abs(of_ranks - right).argmax()])


def _tolerance(job: Job, step_index: int, description: Description) -> float:
    """The bound on the relative error of a weight."""
    if job.objective not in OFF_POLICY:
        return weight_bound(description.dtype)
    return ratio_bound(description.dtype, int(job.steps[step_index].active_tokens.max()))


def most_wrong(job: Job, observations: Sequence[Observation], description: Description) -> Token:
    """The token whose weight has the largest relative error.

    A clipped token, which must have no gradient, is chosen only if no other weight is wrong, unless
    the loss selects tokens. Of equally wrong tokens, those with a weight are preferred, then those
    of the sample with most tokens, whose counts are the easiest to distinguish.
    """
    errors: list[tuple[bool, float, bool, int, Token]] = []
    batch = ProbedBatch.of(job, description.conventions)
    derivatives = batch.split(batch.dloss_dlogprob)
    for step_index, tokens in enumerate(tokens_of_steps(job)):
        context = step_context(job, step_index, observations, description)
        expected, counted = context.expected, context.counted[context.sample]
        has_gradient = (derivatives[step_index] != 0) | (job.objective in COMPARING_ADVANTAGES)
        right = np.where(derivatives[step_index], expected, 0)
        tolerance = _tolerance(job, step_index, description)
        for observed in final_weights(observations, step_index, job, description.conventions):
            off = np.nan_to_num(np.abs(observed - right), nan=np.inf, posinf=np.inf)
            relative = off / np.where(expected, expected, expected.max(initial=1.0))
            errors += [
                (
                    bool(has_gradient[place] and relative[place] > tolerance),
                    round(float(relative[place]), 5),
                    bool(observed[place]),
                    int(counted[place]),
                    token,
                )
                for place, token in enumerate(tokens)
            ]
    return max(errors, key=lambda error: (*error[:4], [-one for one in error[4]]))[4]
