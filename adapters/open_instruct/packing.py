"""How open-instruct packs the samples of a job into rows, and rows into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Unsupported
from adapters.contract.layout import Option
from adapters.toolkit.settings import token_budget

if TYPE_CHECKING:
    from adapters.contract import Job


@dataclass(frozen=True)
class Packing:
    """The generations of a job, and the length of rows that cuts them as the layout says.

    open-instruct fills rows one after another with samples in their order, gives each rank
    consecutive rows and drops those that are left over. Of a generation for all steps, each rank
    has its part of every step.
    """

    job: Job

    @cached_property
    def generations(self) -> list[list[int]]:
        """The samples of each generation, in their order."""
        sizes = np.cumsum([0, *(step.size for step in self.job.steps)])
        of_steps = [[*range(*ends)] for ends in zip(sizes[:-1], sizes[1:], strict=True)]
        if Option.SHARED_GENERATION not in self.job.layout.options:
            return of_steps
        ranks = self.job.layout.dp
        parts = [np.array_split(samples, ranks) for samples in of_steps]
        return [[int(one) for rank in range(ranks) for part in parts for one in part[rank]]]

    @property
    def pack_length(self) -> int:
        """The shortest rows that give every rank as many as it has micro-batches, or more.

        Raises `Unsupported` if no length does.
        """
        if self.job.layout.micro_batches == "tokens":
            return max(token_budget(self.job.steps, self.job.layout.dp), self._least)
        for length in range(self._least, int(self._lengths.sum()) + 1):
            if all(self._fits(samples, length) for samples in self.generations):
                return length
        raise Unsupported(f"no pack_length cuts the samples into {self.job.layout}")

    @property
    def rows(self) -> int:
        """The rows of a micro-batch."""
        cut, length = self.job.layout.micro_batches, self.pack_length
        if self.job.layout.format == "thd":
            return 1
        rows = max(len(self._rows(samples, length)) for samples in self.generations)
        return -(-rows // (self.job.layout.dp * int(cut)))

    @property
    def longest(self) -> tuple[int, int]:
        """The longest prompt and the longest response."""
        steps = self.job.steps
        of_prompts = max(int(step.prompt_lengths.max()) for step in steps)
        return of_prompts, max(int(step.response_lengths.max()) for step in steps)

    @property
    def _least(self) -> int:
        """The shortest rows that open-instruct accepts."""
        return sum(self.longest)

    @cached_property
    def _lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The tokens of each sample with its prompt."""
        return np.concatenate(
            [step.prompt_lengths + step.response_lengths for step in self.job.steps]
        )

    def _fits(self, samples: list[int], length: int) -> bool:
        """Whether rows of a length divide by ranks, and no row has samples of two steps."""
        layout = self.job.layout
        rows, parts = self._rows(samples, length), layout.dp * int(layout.micro_batches)
        if layout.format == "bshd":
            return len(rows) % layout.dp == 0 and len(rows) >= parts
        steps = len(self.job.steps) // len(self.generations)
        return len(rows) == parts * steps and all(self._is_of_one_step(row) for row in rows)

    def _is_of_one_step(self, row: list[int]) -> bool:
        ends = np.cumsum([step.size for step in self.job.steps])
        return len({*np.searchsorted(ends, row, side="right")}) == 1

    def _rows(self, samples: list[int], length: int) -> list[list[int]]:
        """The samples of each row, as `pack_sequences` fills rows for ranks."""
        ranks, lengths = self.job.layout.dp, self._lengths
        room = min(length, int(lengths[samples].sum()) // ranks) if ranks > 1 else length
        rows: list[list[int]] = []
        for sample in samples:
            if rows and lengths[[*rows[-1], sample]].sum() <= room:
                rows[-1].append(sample)
            else:
                rows.append([sample])
        return rows
