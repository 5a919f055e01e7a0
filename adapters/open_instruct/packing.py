"""How open-instruct packs the samples of a job into rows, and rows into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Unsupported
from adapters.contract.layout import Option
from adapters.toolkit.settings import gives_advantages, token_budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract import Job

ATTEMPTS = 50
"""Further orders of samples that are tried."""


@dataclass(frozen=True)
class Packing:
    """The generations of a job, and the length of rows that cuts them as its layout says.

    open-instruct fills rows one after another with samples in their order, gives each rank
    consecutive rows and drops those that are left over. Samples have an order in which none are, if
    there is one, unless micro-batches are by tokens. Of a generation for all steps, each rank has
    its part of every step.
    """

    generations: list[list[int]]
    """The samples of each generation, in their order."""

    pack_length: int
    """The shortest rows that give every rank as many as it has micro-batches, or more."""

    rows: int
    """The most rows of a micro-batch."""

    longest: tuple[int, int]
    """The longest prompt and the longest response."""

    @classmethod
    def of(cls, job: Job) -> Packing:
        """The packing of a job; raises `Unsupported` if no length of rows cuts its samples."""
        samples, cut = _Samples(job), job.layout.micro_batches
        if cut == "tokens":
            length = max(token_budget(job.steps, job.layout.dp), sum(samples.longest))
            return cls(next(samples.orders), length, 1, samples.longest)
        for generations in samples.orders:
            for length in samples.lengths_of_rows(generations):
                if all(samples.fit(one, length) for one in generations):
                    rows = samples.most_rows(generations, length)
                    return cls(generations, length, rows, samples.longest)
        raise Unsupported(f"no pack_length cuts the samples into {job.layout}")


@dataclass(frozen=True)
class _Samples:
    """The samples of a job, and the rows that they fill."""

    job: Job

    @property
    def orders(self) -> Iterator[list[list[int]]]:
        """Yields the samples of each generation in the case's order, then in others.

        There are no others where open-instruct compares the samples of a prompt.
        """
        sizes = np.cumsum([0, *(step.size for step in self.job.steps)]).tolist()
        of_steps = [np.arange(*ends) for ends in pairwise(sizes)]
        yield self._generations(of_steps)
        generator = np.random.default_rng(0)
        for _ in range(ATTEMPTS if gives_advantages(self.job) else 0):
            yield self._generations([generator.permutation(samples) for samples in of_steps])

    def _generations(self, of_steps: list[NDArray[np.int64]]) -> list[list[int]]:
        if Option.SHARED_GENERATION not in self.job.layout.options:
            return [samples.tolist() for samples in of_steps]
        parts = [np.array_split(samples, self.job.layout.dp) for samples in of_steps]
        return [np.concatenate([*chain.from_iterable(zip(*parts, strict=True))]).tolist()]

    def lengths_of_rows(self, generations: list[list[int]]) -> Iterator[int]:
        """Yields the lengths, from the shortest that is allowed, at which rows hold other samples."""
        length = sum(self.longest)
        if self.job.layout.format == "thd":
            needed = -(-int(self._lengths.sum()) // (self._parts * len(self.job.steps)))
            length = max(length, needed)
        while True:
            yield length
            rows = [self._rows(one, length) for one in generations]
            longer = [
                int(self._lengths[[*row, after[0]]].sum())
                for of_one in rows
                for row, after in pairwise(of_one)
            ]
            longer = [one for one in longer if one > length]
            if not longer or any(len(of_one) < self._parts for of_one in rows):
                return
            length = min(longer)

    def fit(self, samples: list[int], length: int) -> bool:
        """Whether rows of a length divide by ranks, and no row has samples of two steps."""
        layout, rows = self.job.layout, self._rows(samples, length)
        if layout.format == "bshd":
            return len(rows) % layout.dp == 0 and len(rows) >= self._parts
        steps = len({*self._step_of(samples)})
        return len(rows) == self._parts * steps and all(len({*self._step_of(row)}) == 1 for row in rows)

    def most_rows(self, generations: list[list[int]], length: int) -> int:
        """The rows of a micro-batch, if those of the largest generation are cut evenly."""
        if self.job.layout.format == "thd":
            return 1
        rows = max(len(self._rows(samples, length)) for samples in generations)
        return -(-rows // self._parts)

    @property
    def _parts(self) -> int:
        """The micro-batches of a step on all ranks."""
        return self.job.layout.dp * int(self.job.layout.micro_batches)

    @property
    def longest(self) -> tuple[int, int]:
        """The longest prompt and the longest response."""
        steps = self.job.steps
        of_prompts = max(int(step.prompt_lengths.max()) for step in steps)
        return of_prompts, max(int(step.response_lengths.max()) for step in steps)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The tokens of each sample with its prompt."""
        steps = self.job.steps
        return np.concatenate([step.prompt_lengths + step.response_lengths for step in steps])

    def _step_of(self, samples: list[int]) -> list[int]:
        ends = np.cumsum([step.size for step in self.job.steps])
        return np.searchsorted(ends, samples, side="right").tolist()

    def _rows(self, samples: list[int], length: int) -> list[list[int]]:
        """The samples of each row, as `pack_sequences` fills rows for ranks."""
        ranks, lengths = self.job.layout.dp, self._lengths
        room = min(length, int(lengths[samples].sum()) // ranks) if ranks > 1 else length
        rows, filled = list[list[int]](), 0
        for sample, added in zip(samples, lengths[samples].tolist(), strict=True):
            filled += added
            if not rows or filled > room:
                rows.append([])
                filled = added
            rows[-1].append(sample)
        return rows
