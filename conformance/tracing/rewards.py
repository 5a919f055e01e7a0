"""Traces advantages that a framework computes, in a job in which only one sample has a reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.altered import painting
from adapters.contract.job import Column, Paint
from adapters.contract.objective import OF_VALUES, PENALISING, Objective
from conformance.expected.advantages import BatchAdvantages
from conformance.expected.loss_terms import advantage_terms
from conformance.findings.errors import NotTracedError
from conformance.judging.weights import final_weights, step_context
from conformance.ranks.pool import Ran
from conformance.tracing.traced import Token, TracedJob, tokens_of_steps
from conformance.tracing.tracer import recorded, trace
from reference import advantages
from reference.rounding import ratio_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from conformance.expected.advantages import Estimate
    from conformance.expected.term import LossTerm
    from conformance.findings.cause import TracedToken
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed, RankPool

MOST_PAINTED = {Column.REWARDS: 8, Column.VALUES: 4, Column.REFERENCE_LOG_PROBS: 4}
"""The largest number of jobs for each painted column; each job paints another sample."""

PAINTED_OF = {Column.VALUES: OF_VALUES, Column.REFERENCE_LOG_PROBS: PENALISING}
"""For each painted column other than rewards, the estimators that read it."""

SAME = 1e-4
"""The largest relative difference between equal factors: some roundings of float32 statistics."""

CLEARLY = 0.5
"""The relative error above which an advantage is so wrong that no other needs to be traced."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedAdvantage(TracedJob):
    """The advantage of a token if a single input of advantages, such as a reward, is not 0."""

    numbers: NDArray[np.float64]
    """The sizes of all numbers that a right computation makes from the input: [numbers]."""

    @property
    def is_own(self) -> bool:
        """Whether the token belongs to the only sample with a reward or value."""
        return self.job.painted is not None and self.token.sample == self.job.painted.sample

    @property
    def is_wrong(self) -> bool:
        """Whether the observed advantage differs from the reference's."""
        return not abs(self.observed - self.expected) <= self.tolerance


def is_clearly_wrong(token: TracedToken | TracedAdvantage | None) -> bool:
    """Whether an advantage is so wrong that no other needs to be traced."""
    return token is not None and _error(token) > CLEARLY


def _error(token: TracedToken | TracedAdvantage) -> float:
    """The error of an advantage, relative to the larger of the right and the observed one."""
    largest = max(abs(token.observed), abs(token.expected))
    return abs(token.observed - token.expected) / largest if largest else 0.0


def trace_advantage(
    job: Job, pool: RankPool, token: Token | None
) -> TracedJob | Crashed | Declined:
    """Trace the advantage of a token, by default the most wrong one, to the reward of a sample.

    If the token's weight is just as wrong with given advantages, the weight is traced instead.

    Raises:
        NotTracedError: the job lacks the token, or has no active token.
    """
    ordinary = pool.run(job)  # a framework may build objects in its first run only
    if not isinstance(ordinary, Ran):
        return ordinary
    found: list[TracedAdvantage] = []
    for paint in _paints(job):
        painted = replace(job, painted=paint)
        ran = pool.run(painted)
        if not isinstance(ran, Ran):
            return ran
        with painting(paint):
            found += _advantages(painted, paint.column, ran, pool)
    if not any(one.is_wrong for one in found):
        found += _advantages(job, Column.REWARDS, ordinary, pool)
    if (weight := _wrong_weight(found, job, pool, token)) is not None:
        return weight
    wanted = [one for one in found if token in (None, one.token)]
    if not wanted:
        raise NotTracedError("no token of this batch is active")
    return recorded(max(wanted, key=_telling), pool)


def _wrong_weight(
    found: Sequence[TracedAdvantage], job: Job, pool: RankPool, token: Token | None
) -> TracedJob | None:
    """The trace of a token's weight, if the weight alone explains the wrong computed advantages.

    The weight is measured in a job with given advantages.
    """
    factors = [one.observed / one.expected for one in found if abs(one.expected) > one.tolerance]
    if not factors or not any(one.is_wrong for one in found):
        return None
    if not all(math.isclose(one, factors[0], rel_tol=SAME) for one in factors):
        return None
    rejects = any((step.mask != step.mask_before_rejection).any() for step in job.steps)
    given = replace(job, objective=Objective.REJECTION if rejects else Objective.POLICY)
    traced = trace(given, pool, token)
    if not isinstance(traced, TracedJob) or not traced.is_wrong or not traced.expected:
        return None
    error = traced.observed / traced.expected
    return traced if math.isclose(error, factors[0], rel_tol=SAME) else None


def _paints(job: Job) -> list[Paint]:
    """The inputs to paint in turn: rewards of samples, and values or divergences of tokens.

    Each painted value is that of a token in the middle of its sample, so that it affects several
    advantages. If it affected only one, whitening would hide its scale.
    """
    columns = [Column.REWARDS]
    columns += [column for column, readers in PAINTED_OF.items() if job.objective in readers]
    return [
        Paint(*token, column)
        for column in columns
        for token in islice(_middle_tokens(job), MOST_PAINTED[column])
    ]


def _middle_tokens(job: Job) -> Iterator[Token]:
    """Yield the active token in the middle of each sample that has one."""
    for step, tokens in zip(job.steps, tokens_of_steps(job), strict=True):
        for start, length in zip(step.offsets, step.response_lengths, strict=False):
            active = np.flatnonzero(step.mask[start : start + length])
            if active.size:
                yield tokens[start + int(active[len(active) // 2])]


def _telling(traced: TracedAdvantage) -> tuple[bool, bool, float]:
    """A sort key: wrong advantages are best, then those of the painted sample, then by error."""
    return traced.is_wrong, traced.is_own, _error(traced)


def _advantages(job: Job, column: Column, ran: Ran, pool: RankPool) -> Iterator[TracedAdvantage]:
    """Yield the advantage of each token with a weight, in a job with a painted reward or value."""
    description = pool.description
    contexts = [
        step_context(job, index, ran.observations, description) for index in range(len(job.steps))
    ]
    terms = advantage_terms(contexts, job.objective)
    bound = ratio_bound(description.dtype, sum(len(step.mask) for step in job.steps))
    numbers = _numbers(terms[0])
    for index, (context, term) in enumerate(zip(contexts, terms, strict=True)):
        weights = final_weights(ran.observations, index, job, description.conventions)
        factors, rounding = np.asarray(term.factors), np.asarray(term.rounding)
        tokens = [*tokens_of_steps(job)][index]
        for place, token in enumerate(tokens):
            if not context.expected[place]:
                continue
            weight, right = float(context.expected[place]), -float(factors[place])
            observed = _farthest(weights, place, weight * right) / weight
            yield TracedAdvantage(
                job=job,
                token=token,
                column=column,
                context=context,
                place=place,
                expected=right,
                observed=observed,
                traced=observed,
                tolerance=bound * max(abs(right), float(rounding[place]), 1.0),
                is_nowhere=not any(one[place] for one in weights),
                numbers=numbers,
            )


def _farthest(weights: Sequence[NDArray[np.float64]], place: int, right: float) -> float:
    """The weight of a token on the rank where it is most wrong."""
    return float(max((one[place] for one in weights), key=lambda weight: abs(weight - right)))


def _numbers(term: LossTerm) -> NDArray[np.float64]:
    """The sizes of all numbers that a right computation makes from a reward."""
    assert isinstance(term.source, BatchAdvantages)
    estimate = term.source.estimate
    found = [
        np.nan_to_num(estimate.rollouts.rewards),
        estimate.rollouts.values,
        *_of_groups(estimate),
        *_of_tokens(estimate),
    ]
    return np.unique(np.abs(np.concatenate([np.ravel(one) for one in found])))


def _of_groups(estimate: Estimate) -> Iterator[NDArray[np.float64]]:
    """Yield statistics of groups, and the intermediate numbers of their computation."""
    peers, epsilon = estimate.peers, estimate.conventions.std_epsilon
    std = advantages.std(estimate.conventions)
    for statistic_of in (peers.of_group, peers.of_others):
        mean, size = statistic_of(np.mean), statistic_of(len)
        centred, spread = peers.rewards - mean, statistic_of(std)
        squares = statistic_of(lambda rewards: float(((rewards - rewards.mean()) ** 2).sum()))
        yield from (mean, statistic_of(np.sum), centred, mean**2, centred**2, peers.rewards**2)
        yield from (squares, spread, spread + epsilon, spread**2, squares / np.maximum(size, 1))
        yield from (mean + epsilon, mean * size, peers.rewards * size)


def _of_tokens(estimate: Estimate) -> Iterator[NDArray[np.float64]]:
    """Yield raw and whitened advantages of tokens, and the numbers in between."""
    raw, conventions = estimate.raw, estimate.conventions
    rewards = advantages.token_rewards(estimate.rollouts, estimate.constants, conventions)
    discounted = estimate.constants.discount * estimate.rollouts.values
    yield from (raw, estimate.advantages, rewards, discounted, estimate.decay * raw)
    if not estimate.estimator.whitens:
        return
    counted = raw[estimate.rollouts.tokens(conventions.whitened)]
    if counted.size:
        mean, spread = counted.mean(), advantages.spread(counted, conventions)
        squares = (counted - mean) ** 2
        yield from (raw**2, raw - mean, (raw - mean) ** 2, 1 / np.array([spread]))
        whole = (mean, spread, spread**2, counted.sum(), squares.sum(), squares.mean(), mean**2)
        yield np.array([*whole, (counted**2).sum(), (counted**2).mean()])
