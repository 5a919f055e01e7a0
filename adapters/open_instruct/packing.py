"""Packing in open-instruct: the samples of a job in rows, and rows in micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Job, Option, Unsupported
from adapters.toolkit import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reference.arrays import Integers


ATTEMPTS = 50
"""The number of further orders of samples that are tried."""


@dataclass(frozen=True)
class Packing:
    """The ordered samples of each generation, and the sizes of rows and micro-batches.

    open-instruct fills rows one after another, gives each rank consecutive rows and drops rows that
    are left over. Rows are left over only if micro-batches are cut by tokens.
    """

    generations: list[list[int]]
    pack_length: int
    rows: int


def packing_of(job: Job) -> Packing:
    """The packing with the shortest rows that gives every rank one row per micro-batch.

    Padded micro-batches may have several rows. Raises `Unsupported` if no row length gives such a
    packing.
    """
    layout, steps = job.layout, job.steps
    least, lengths = settings.longest_prompt(job) + settings.longest_response(job), _lengths(job)
    if layout.micro_batches == "tokens":
        return Packing(next(_orders(job)), max(settings.rank_budget(job), least), 1)
    parts, is_padded = layout.dp * int(layout.micro_batches), layout.format == "bshd"
    shortest = least if is_padded else max(least, int(lengths.sum()) // (parts * len(steps)))
    of_a_rank = int(lengths.sum()) // layout.dp  # open-instruct would cut longer rows
    tried = range(shortest, max(shortest, of_a_rank) + 1)
    for generations, length in product(_orders(job), tried):
        cut = [_rows(lengths, samples, length, layout.dp) for samples in generations]
        if all(_fits(job, rows, parts) for rows in cut):
            most = max(map(len, cut))
            return Packing(generations, length, -(-most // parts) if is_padded else 1)
    raise Unsupported(f"no pack_length cuts the samples into {layout}")


def _lengths(job: Job) -> Integers:
    """The number of tokens of each sample, including its prompt."""
    return np.concatenate([step.prompt_lengths + step.response_lengths for step in job.steps])


def _orders(job: Job) -> Iterator[list[list[int]]]:
    """Yields the samples of each generation in the case's order, then in random orders.

    There are no random orders if open-instruct compares the samples of a prompt. If one generation
    serves all steps, each rank has its part of every step.
    """
    steps, generator = [*map(np.concatenate, settings.shares(job))], np.random.default_rng(0)
    for attempt in range(1 + ATTEMPTS if settings.gives_advantages(job) else 1):
        orders = [generator.permutation(one) if attempt else one for one in steps]
        if Option.SHARED_GENERATION in job.layout.options:
            orders = [settings.dealt(np.array_split(samples, job.layout.dp) for samples in orders)]
        yield [samples.tolist() for samples in orders]


def _rows(lengths: Integers, samples: list[int], length: int, ranks: int) -> list[list[int]]:
    """The samples of each row, as `pack_sequences` fills rows for ranks."""
    room = min(length, int(lengths[samples].sum()) // ranks) if ranks > 1 else length
    rows, filled = list[list[int]](), 0
    for sample, added in zip(samples, lengths[samples].tolist(), strict=True):
        filled += added
        if not rows or filled > room:
            rows.append([])
            filled = added
        rows[-1].append(sample)
    return rows


def _fits(job: Job, rows: list[list[int]], parts: int) -> bool:
    """Whether the number of rows suits the ranks, and no row has samples of two steps."""
    if job.layout.format == "bshd":
        return len(rows) % job.layout.dp == 0 and len(rows) >= parts
    ends = np.cumsum([step.size for step in job.steps])
    of_rows = [{*np.searchsorted(ends, row, side="right")} for row in rows]
    return len(rows) == parts * len(set().union(*of_rows)) and all(len(one) == 1 for one in of_rows)
