"""Generations of TRL's trainers: samples generated together, and their cut into optimizer steps.

A rank's part of a generation is cut into equal micro-batches. By default a generation holds the
samples of one optimizer step; it may also hold the samples of several steps, or of one micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Job, Option, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.toolkit.settings import gives_advantages, rollouts_per_prompt, samples_per_step

if TYPE_CHECKING:
    from reference.arrays import Integers


COMPARED = 2
"""The number of samples of a prompt in jobs whose result does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The sizes of a job, such as its optimizer steps and a rank's micro-batches in each step.

    ``per_generation`` counts micro-batches; each generation is trained on ``iterations`` times.
    """

    steps: int
    ranks: int
    micro_batches: int
    micro_batch_size: int
    per_generation: int
    iterations: int

    @property
    def generation_size(self) -> int:
        """The number of samples of a generation, over all ranks."""
        return self.per_generation * self.micro_batch_size * self.ranks

    @property
    def generations(self) -> int:
        """The number of generations."""
        return self.steps * self.micro_batches // self.per_generation

    @property
    def observed(self) -> list[int]:
        """For each step of the job, the last optimizer step that trains it."""
        together = max(self.per_generation // self.micro_batches, 1)
        return [
            (step - step % together) * self.iterations
            + (self.iterations - 1) * together
            + step % together
            for step in range(self.steps)
        ]

    def samples(self, generation: int, rank: int) -> list[int]:
        """A rank's samples of a generation, in the order of micro-batches."""
        first = generation * self.per_generation
        return [
            sample
            for index in range(first, first + self.per_generation)
            for sample in self._micro_batch(index, rank)
        ]

    def _micro_batch(self, index: int, rank: int) -> range:
        step, micro_batch = divmod(index, self.micro_batches)
        part = micro_batch * self.ranks + rank
        if self.per_generation >= self.micro_batches:
            # A rank has a contiguous part of a step and cuts it into micro-batches.
            part = rank * self.micro_batches + micro_batch
        first = (step * self.ranks * self.micro_batches + part) * self.micro_batch_size
        return range(first, first + self.micro_batch_size)


@dataclass(eq=False)
class Generated:
    """The samples of a batch that a rank generates, one generation after another."""

    batch: ProbedBatch
    job: Job
    schedule: Schedule
    rank: int

    def is_truncated(self, sample: int) -> bool:
        """Whether a sample has no active token because the trainer masks truncated samples."""
        masks_truncated = Option.MASKED_TRUNCATION in self.job.layout.options
        return masks_truncated and not self.batch.original_masks[sample].any()

    def generated_mask(self, sample: int) -> Integers:
        """Mask of the tokens that the policy generated itself: all tokens of a truncated sample."""
        return (self.batch.original_masks[sample] | self.is_truncated(sample)).astype(np.int64)


def schedule_of(job: Job, iterations: int = 1) -> Schedule:
    """The schedule for a job; raises `Unsupported` if its samples cannot be divided."""
    layout, size = job.layout, job.configuration.batch_size or samples_per_step(job)
    if not isinstance(layout.micro_batches, int):
        raise Unsupported(f"no micro-batches by {layout.micro_batches}")
    parts = layout.dp * layout.micro_batches
    if size % parts:
        raise Unsupported(f"{size} samples cannot be cut into {parts} equal micro-batches")
    schedule = Schedule(
        steps=len(job.steps),
        ranks=layout.dp,
        micro_batches=layout.micro_batches,
        micro_batch_size=size // parts,
        per_generation=_per_generation(job, layout.micro_batches),
        iterations=iterations,
    )
    is_partial = Option.PARTIAL_WINDOW in layout.options
    if is_partial and (iterations > 1 or schedule.steps > 1):
        raise Unsupported("only the last accumulation window of an epoch lacks micro-batches")
    if iterations > 1 and schedule.micro_batches % (iterations * schedule.per_generation) == 0:
        raise Unsupported("an optimizer step would train on each of its generations twice")
    return schedule


def _per_generation(job: Job, micro_batches: int) -> int:
    """The number of micro-batches of a generation."""
    if Option.SHARED_GENERATION in job.layout.options:
        return micro_batches * len(job.steps)
    return 1 if Option.SPLIT_GENERATION in job.layout.options else micro_batches


def generations_of_prompt(job: Job, schedule: Schedule) -> int:
    """The number of samples of a prompt.

    If advantages are given, it is 2, or the size of a generation if that is odd.

    Raises `Unsupported` if prompts differ in size, or a generation has only a part of a prompt.
    """
    if not gives_advantages(job):
        return _samples_of_prompts(job, schedule)
    return schedule.generation_size if schedule.generation_size % 2 else COMPARED


def _samples_of_prompts(job: Job, schedule: Schedule) -> int:
    """The number of samples of every prompt; a generation must have all of them, adjacent."""
    size = rollouts_per_prompt(job)
    groups = ProbedBatch(job.steps).groups
    for generation in range(schedule.generations):
        ranks = (schedule.samples(generation, rank) for rank in range(schedule.ranks))
        generated = groups[[*chain.from_iterable(ranks)]]
        whole = len(generated) % size == 0
        if not whole or np.ptp(generated.reshape(-1, size), axis=1).any():
            raise Unsupported(f"a generation does not have whole prompts of {size} samples")
    return size
