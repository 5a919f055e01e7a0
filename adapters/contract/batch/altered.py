"""Columns of a batch that are poisoned at masked tokens, or attached.

A poison is a value that no loss may depend on. An attached column is not detached from a graph: it
has a gradient, which must stay 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from adapters.contract.job import Column
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from adapters.contract.job import Job


class Attached(list["NDArray[np.float64]"]):
    """Values of tokens, an array for each sample, that a framework must take as constants.

    The toolkit gives them a gradient.
    """


class Batch(Protocol):
    """What the columns of a batch are altered by: `ProbedBatch`."""

    @property
    def responses(self) -> list[NDArray[np.int64]]:
        """Token ids of each sample's response."""

    @property
    def original_masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample before rejection sampling."""

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
    poison = np.array(job.poison.values)
    return [
        np.where(kept, of_sample, poison[ids % len(poison)])
        for kept, of_sample, ids in zip(_kept(plain, column), values, plain.responses, strict=True)
    ]


def _kept(plain: Batch, column: Column) -> list[NDArray[np.bool_]]:
    """The tokens whose values stay: those that a mask keeps before rejection sampling.

    An advantage of a whole sample stays if the sample has any.
    """
    if column is Column.ADVANTAGES and plain.advantage_unit is AdvantageUnit.SAMPLE:
        return [np.full(len(mask), mask.any()) for mask in plain.original_masks]
    return plain.original_masks
