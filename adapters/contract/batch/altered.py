"""Columns of a batch that are poisoned, attached or painted.

A poison is a value that no loss may depend on. Paint is the advantage of one token alone, whose way
to the gradient is traced. An attached column is not detached from a graph: it
has a gradient, which must stay 0.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import numpy as np

from adapters.contract.job import Column, Place
from adapters.contract.objective import CONSTANTS
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract.job import Job


PAINT = 4096.0
"""The advantage of a painted token, which no other number of a step is."""

PAINTED: ContextVar[tuple[int, int] | None] = ContextVar("painted", default=None)


@contextmanager
def painting(token: tuple[int, int] | None) -> Iterator[None]:
    """Give one token of every batch made in the context an advantage, and all others none.

    It has the sign of its own, which clipping depends on.
    """
    reset = PAINTED.set(token)
    try:
        yield
    finally:
        PAINTED.reset(reset)


COLUMNS = frozenset(Column)


class Attached(list["NDArray[np.float64]"]):
    """Values of tokens, an array for each sample, that a framework must take as constants.

    The toolkit gives them a gradient.
    """


class Surrounded(list["NDArray[np.float64]"]):
    """Values of tokens, an array for each sample, with poison at the ids of prompts and padding."""

    def __init__(self, values: Sequence[NDArray[np.float64]], poison: NDArray[np.float64]) -> None:
        super().__init__(values)
        self.poison = poison


def elsewhere(values: Sequence[NDArray[np.float64]], ids: int, fill: float) -> NDArray[np.float64]:
    """What a column has at ids that are no response token's, one for each id: [ids]."""
    return np.resize(values.poison if isinstance(values, Surrounded) else fill, ids)


class Batch(Protocol):
    """What the columns of a batch are altered by: `ProbedBatch`."""

    @property
    def responses(self) -> list[NDArray[np.int64]]:
        """Token ids of each sample's response."""

    @property
    def original_masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample before rejection sampling."""

    @property
    def masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample after it."""

    @property
    def advantages(self) -> list[NDArray[np.float64]]:
        """Advantages of tokens."""

    @property
    def log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the new policy."""

    @property
    def old_log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the old policy."""

    @property
    def rollout_log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the rollout policy."""

    @property
    def probe_size(self) -> int:
        """Number of token ids, including padding."""

    @property
    def advantage_unit(self) -> AdvantageUnit:
        """What has an advantage of its own."""


def altered(plain: Batch, column: Column, job: Job) -> list[NDArray[np.float64]]:
    """A column of a plain batch, altered if it is the one that the job poisons or traces."""
    values: list[NDArray[np.float64]] = getattr(plain, column)
    if column is job.attached:
        return Attached(values)
    if job.poison is None or column is not job.poison.column:
        return values
    poison, place = np.array(job.poison.values), job.poison.place
    if place is Place.OUTSIDE:
        return Surrounded(values, poison)
    poisoned = POISONED[place](plain, column)
    return [
        np.where(replaced, poison[ids % len(poison)], of_sample)
        for replaced, of_sample, ids in zip(poisoned, values, plain.responses, strict=True)
    ]


def altered_table(
    plain: NDArray[np.float64], batch: Batch, column: Column, job: Job
) -> NDArray[np.float64]:
    """A table of the plain batch, cycled over ids, with the column's values if it is poisoned."""
    if job.poison is None or column is not job.poison.column:
        return plain
    table = np.resize(plain, batch.probe_size + 2)
    table[np.concatenate(batch.responses)] = np.concatenate(getattr(batch, column))
    return table


def _masked(plain: Batch, column: Column) -> list[NDArray[np.bool_]]:
    """The tokens that a mask excludes before rejection sampling.

    The advantage of a whole sample is that of masked tokens alone if it has no others.
    """
    if column is Column.ADVANTAGES and plain.advantage_unit is AdvantageUnit.SAMPLE:
        return [np.full(len(mask), not mask.any()) for mask in plain.original_masks]
    return [~mask for mask in plain.original_masks]


def _rejected(plain: Batch, column: Column) -> list[NDArray[np.bool_]]:
    """The tokens that rejection sampling removes."""
    pairs = zip(plain.original_masks, plain.masks, strict=True)
    return [before & ~after for before, after in pairs]


def _clipped(plain: Batch, column: Column) -> list[NDArray[np.bool_]]:
    """The active tokens whose ratio to an earlier policy has an upper bound, and is beyond it.

    That of a policy loss has none where the advantage is negative.
    """
    if column is Column.ROLLOUT_LOG_PROBS:
        ratios = zip(plain.masks, plain.old_log_probs, plain.rollout_log_probs, strict=True)
        bound = np.log(CONSTANTS.truncation)
        return [mask & (old - rollout > bound) for mask, old, rollout in ratios]
    columns = plain.masks, plain.advantages, plain.log_probs, plain.old_log_probs
    bound = np.log1p(CONSTANTS.clip_high)
    return [
        mask & (advantages > 0) & (new - old > bound)
        for mask, advantages, new, old in zip(*columns, strict=True)
    ]


POISONED = {Place.MASKED: _masked, Place.REJECTED: _rejected, Place.CLIPPED: _clipped}
"""The response tokens at each place, by sample."""
