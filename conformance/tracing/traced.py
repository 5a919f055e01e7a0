"""A traced job: the token or logged number that is traced, with its right and observed value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.findings.errors import NotTracedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.job import Column
    from adapters.contract.objective import Metric
    from conformance.expected.step_context import StepContext
    from conformance.findings.trace import RankTrace


class Token(NamedTuple):
    """A token of a batch: its sample, numbered over all steps, and its place in the response."""

    sample: int
    token: int

    def __str__(self) -> str:
        return f"{self.sample}:{self.token}"


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedJob:
    """The weight of one token in an ordinary run of a job, and the operations of a traced run."""

    job: Job
    """The job that is traced, with the painted token."""

    token: Token
    column: Column
    """The column in which the token is painted."""

    context: StepContext
    """The context of the token's step, with the aggregation of the traced term."""

    place: int
    """The place of the token among the tokens of its step."""

    expected: float
    """The reference's weight of the token."""

    observed: float
    traced: float
    """The token's weight in the traced job, in which only this token has a value."""

    derivative: float = 1.0
    """The token's loss in the traced job, relative to its painted value."""

    ratio: float = 1.0
    """The token's ratio of new to old probability, if the loss contains it as a factor."""

    gradient_unit: float = 1.0
    """The ratio of the token's gradient to its loss in the traced job, for a weight of 1."""

    tolerance: float
    traces: tuple[RankTrace, ...] = ()

    is_nowhere: bool = False
    """Whether the token has no weight on any rank of the traced job."""

    metric: Metric | None = None
    """The logged number that the token is traced to; None if it is traced to its gradient."""

    logged_as: str = ""
    """The framework's name of the logged number."""

    logged: float | None = None
    """The number that the traced job logs, on the rank where it is most wrong."""

    rank: int = 0
    """The rank that logs the number."""

    is_trained_right: bool = False
    """Whether the token's weight in the gradient is right, though its weight in a log is wrong."""

    @property
    def is_wrong(self) -> bool:
        """Whether the observed weight differs from the reference's."""
        size = max(abs(self.expected), float(self.context.expected[self.place]))
        return not abs(self.observed - self.expected) <= self.tolerance * size

    @property
    def is_of_all(self) -> bool:
        """Whether nothing is painted: a number is traced as a whole, or with all rewards."""
        return self.job.painted is None

    @property
    def depends_on_others(self) -> bool:
        """Whether the token's weight changes if no other token has a value."""
        return abs(self.traced - self.observed) > self.tolerance * abs(self.observed)


def first_masked(job: Job) -> Token:
    """The first token that is masked before rejection sampling.

    Raises:
        NotTracedError: the batch has no masked token.
    """
    masked = first_of_samples(job, [~step.mask_before_rejection for step in job.steps])
    for _, token in masked:
        return token
    raise NotTracedError("no token of this batch is masked")


def first_of_samples(job: Job, masks: Sequence[NDArray[np.bool_]]) -> Iterator[tuple[int, Token]]:
    """Yield, for each sample with tokens in a mask, their number and the first of them."""
    for step, tokens, mask in zip(job.steps, tokens_of_steps(job), masks, strict=True):
        for start, length in zip(step.offsets, step.response_lengths, strict=False):
            places = np.flatnonzero(mask[start : start + length])
            yield from ((len(places), tokens[start + int(first)]) for first in places[:1])


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
        NotTracedError: the job lacks the token.
    """
    for step_index, tokens in enumerate(tokens_of_steps(job)):
        if token in tokens:
            return step_index, tokens.index(token)
    raise NotTracedError(
        f"{token} is no token of this batch", "name a sample and a token of its response, from 0"
    )
