"""The cut of a step into forward passes, as ranks observed it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Layout, Observation
    from reference.step import Step


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenPlacement:
    """The ranks and the micro-batch of each response token of a step: int64 [tokens].

    ``micro_batch`` counts from 0 on every data-parallel rank.
    """

    dp_rank: NDArray[np.int64]
    cp_rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]

    @cached_property
    def micro_batch_number(self) -> NDArray[np.int64]:
        """Index of each token's micro-batch over all data-parallel ranks: [tokens]."""
        pairs = self.dp_rank * (int(self.micro_batch.max()) + 1) + self.micro_batch
        numbers: NDArray[np.int64] = np.unique(pairs, return_inverse=True)[1]
        return numbers

    @cached_property
    def micro_batches(self) -> NDArray[np.int64]:
        """Number of micro-batches of each token's data-parallel rank: [tokens]."""
        most = np.zeros(int(self.dp_rank.max()) + 1, np.int64)
        np.maximum.at(most, self.dp_rank, self.micro_batch + 1)
        micro_batches: NDArray[np.int64] = most[self.dp_rank]
        return micro_batches


def zigzag_rank(step: Step, cp: int) -> NDArray[np.int64]:
    """The context-parallel rank of each response token in zigzag slices of packed rows: [tokens].

    A sample is cut into 2·cp chunks, and each rank holds one from the front and one from the back.
    A token belongs to the rank of the token before it, which predicts it.
    """
    samples = np.repeat(np.arange(step.size), step.response_lengths)
    within = np.arange(len(samples)) - step.offsets[samples]
    chunks = -(-(step.prompt_lengths + step.response_lengths) // (2 * cp))
    chunk = (step.prompt_lengths[samples] + within - 1) // chunks[samples]
    rank: NDArray[np.int64] = np.minimum(chunk, 2 * cp - 1 - chunk)
    return rank


def passes_in_order(step: Step, layout: Layout) -> NDArray[np.int32]:
    """The forward passes if a step's samples are cut evenly and in order: [ranks, tokens].

    A layout with unequal micro-batches is assumed to have two. Frameworks may cut otherwise, so
    this serves only for a step that no framework has trained on.
    """
    count = layout.micro_batches if isinstance(layout.micro_batches, int) else 2
    part = np.arange(step.size) * (layout.dp * count) // step.size
    dp_rank, micro_batch = np.divmod(np.repeat(part, step.response_lengths), count)
    holder = dp_rank * layout.cp + (zigzag_rank(step, layout.cp) if layout.cp > 1 else 0)
    ranks = np.arange(layout.dp * layout.cp)[:, np.newaxis]
    return np.where(holder == ranks, micro_batch, -1).astype(np.int32)


def forward_pass_of_token(
    observations: Sequence[Observation], step_index: int, layout: Layout
) -> NDArray[np.int32] | None:
    """Index of the forward pass in which each rank held each token, or -1: [ranks, tokens].

    The ranks are `Layout.token_holders`. None if the adapter does not report forward passes.
    """
    telling = [
        rank.forward_passes[step_index]
        for rank in observations[layout.token_holders]
        if rank.forward_passes
    ]
    return np.array(telling) if len(telling) == layout.dp * layout.cp else None


def rows_of_passes(
    observations: Sequence[Observation], step_index: int, layout: Layout
) -> NDArray[np.int32] | None:
    """The number of a step's rows in each forward pass: [data-parallel ranks, passes].

    None if the adapter does not report rows. Each row is counted once, by the context-parallel rank
    that holds its beginning.
    """
    telling = [rank.rows[step_index] for rank in observations[layout.token_holders] if rank.rows]
    if len(telling) != layout.dp * layout.cp:
        return None
    most = max(len(rows) for rows in telling)
    padded = np.stack([np.pad(rows, (0, most - len(rows))) for rows in telling])
    rows: NDArray[np.int32] = padded.reshape(layout.dp, layout.cp, most).sum(axis=1)
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class FilledRows:
    """Numbers of rows trained together with each token, including repeated rows: [tokens]."""

    of_micro_batch: NDArray[np.float64]
    of_largest: NDArray[np.float64]
    """Rows of the rank's largest micro-batch."""

    of_rank: NDArray[np.float64]
    micro_batches: NDArray[np.int64]
    """Number of micro-batches of the rank, including micro-batches with only repeated rows."""

    most_micro_batches: int
    """The largest number of micro-batches of any rank, including micro-batches of padding only."""


def filled_rows(
    rows: NDArray[np.int32],
    passes: NDArray[np.int32],
    placement: TokenPlacement,
    layout: Layout,
    most_micro_batches: int,
) -> FilledRows:
    """The numbers of rows for each token, given those of each forward pass (`rows_of_passes`)."""
    holder = placement.dp_rank * layout.cp + placement.cp_rank
    of_token = passes[holder, np.arange(len(holder))]
    micro_batches = (rows > 0).sum(axis=1)
    return FilledRows(
        of_micro_batch=rows[placement.dp_rank, of_token].astype(np.float64),
        of_largest=rows.max(axis=1).astype(np.float64)[placement.dp_rank],
        of_rank=rows.sum(axis=1, dtype=np.float64)[placement.dp_rank],
        micro_batches=micro_batches[placement.dp_rank],
        most_micro_batches=most_micro_batches,
    )


def token_placement(passes: NDArray[np.int32], layout: Layout) -> TokenPlacement:
    """The placement of a step's tokens, given the forward passes of each rank: [ranks, tokens].

    Micro-batches are numbered over all context-parallel ranks together, since a context-parallel
    rank may hold no token in a forward pass.
    """
    holder = np.argmax(passes >= 0, axis=0)
    dp_rank, cp_rank = np.divmod(holder, layout.cp)
    micro_batch = passes[holder, np.arange(len(holder))].astype(np.int64)
    for rank in range(layout.dp):
        mine = dp_rank == rank
        micro_batch[mine] = np.unique(micro_batch[mine], return_inverse=True)[1]
    return TokenPlacement(dp_rank=dp_rank, cp_rank=cp_rank, micro_batch=micro_batch)
