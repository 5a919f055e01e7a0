"""Samples as tensors, and their slices on a context-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract.batch.altered import Attached, elsewhere
from adapters.contract.batch.sequences import PADDING_ID
from adapters.toolkit.probe import attached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from adapters.contract.batch.probed_batch import ProbedBatch


@dataclass(frozen=True, eq=False)
class TokenTensors:
    """Token ids and the tensors that losses depend on, all of one shape."""

    ids: torch.Tensor
    advantages: torch.Tensor
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor
    teacher_log_probs: torch.Tensor
    old_values: torch.Tensor
    returns: torch.Tensor
    mask: torch.Tensor
    original_mask: torch.Tensor
    log_probs: torch.Tensor  # the model's, without the probe
    entropies: torch.Tensor  # the model's, without the probe
    correction: torch.Tensor  # the loss's factor, found by comparing a step's tokens


@dataclass(frozen=True, eq=False)
class SampleTensors(TokenTensors):
    """One sample's tokens, [prompt + response], with a critic's values, and its denominators.

    Values are 0 on the prompt. The sample's masked sums are divided by ``denominator`` for the
    policy loss, by ``auxiliary_denominator`` for auxiliary losses and metrics, and by
    ``original_denominator`` for metrics of the mask before rejection sampling.
    """

    values: torch.Tensor
    response_length: int
    reward: float
    group: int
    rollout: int
    denominator: float = float("nan")
    auxiliary_denominator: float = float("nan")
    original_denominator: float = float("nan")

    @cached_property
    def tokens(self) -> int:
        """The number of active tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True, eq=False)
class Packed(TokenTensors):
    """A context-parallel rank's slice: [tokens] in thd, [samples, width] in bshd.

    Each position holds the id and the values of the token that it predicts.
    """

    denominators: torch.Tensor
    auxiliary_denominators: torch.Tensor
    original_denominators: torch.Tensor
    sequence: torch.Tensor  # index of the sample in the micro-batch

    def to(self, device: torch.device) -> Packed:
        """The slice, copied to a device."""
        return Packed(*(getattr(self, each.name).to(device) for each in fields(self)))

    @property
    def auxiliary(self) -> Packed:
        """The slice with the denominators of auxiliary losses."""
        return replace(self, denominators=self.auxiliary_denominators)

    @property
    def original(self) -> Packed:
        """The slice with mask and denominators before rejection sampling."""
        return replace(self, mask=self.original_mask, denominators=self.original_denominators)


def samples_of_steps(batch: ProbedBatch) -> list[list[SampleTensors]]:
    """The samples of each step."""
    responses = np.concatenate(batch.responses)
    lengths = [*map(len, batch.sequences)]

    def token_column(values: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Values of responses, with zeros for prompts unless prompts are poisoned."""
        flat = np.concatenate(values)
        dtype = np.float32 if flat.dtype == np.float64 else flat.dtype
        whole = elsewhere(values, batch.probe_size, 0).astype(dtype)
        whole[responses] = flat
        tokens = torch.from_numpy(whole[1:])
        return (attached(tokens) if isinstance(values, Attached) else tokens).split(lengths)

    columns: tuple[Sequence[NDArray[Any]], ...] = (
        batch.advantages,
        batch.old_log_probs,
        batch.reference_log_probs,
        batch.rollout_log_probs,
        batch.teacher_log_probs,
        batch.old_values,
        batch.returns,
        batch.masks,
        batch.original_masks,
        batch.log_probs,
        batch.entropies,
        [np.ones(len(ids)) for ids in batch.responses],
        batch.values,
    )
    samples = map(
        SampleTensors,
        torch.arange(1, batch.probe_size).split(lengths),
        *map(token_column, columns),
        map(len, batch.responses),
        batch.rewards.tolist(),
        batch.groups.tolist(),
        batch.trajectories.tolist(),
    )
    return [list(islice(samples, step.size)) for step in batch.steps]


def pack(micro_batch: list[SampleTensors], layout: Layout, cp_rank: int) -> Packed:
    """Slice every sequence and join the slices, end to end (thd) or padded to one width (bshd).

    The token that a position predicts may be in another slice, so tokens are picked from whole
    sequences. Beyond a sequence's end, positions predict padding.
    """
    lengths = [len(sample.ids) for sample in micro_batch]
    widths = lengths if layout.format == "thd" else [max(lengths)] * len(lengths)
    join = torch.cat if layout.format == "thd" else torch.stack
    of_rank = [zigzag(width, layout.cp, cp_rank) for width in widths]
    starts = accumulate(lengths, initial=0)
    picked = join(
        [
            torch.where(positions + 1 < length, start + positions + 1, sum(lengths))
            for positions, start, length in zip(of_rank, starts, lengths, strict=False)
        ]
    )
    sequence = join([torch.full_like(held, number) for number, held in enumerate(of_rank)])

    def tokens(field: str) -> torch.Tensor:
        columns = [getattr(sample, field) for sample in micro_batch]
        return torch.cat([*columns, columns[0].new_full((1,), PADDING_ID)])[picked]

    def denominators(field: str) -> torch.Tensor:
        return torch.tensor([getattr(sample, field) for sample in micro_batch])[sequence]

    return Packed(
        **{each.name: tokens(each.name) for each in fields(TokenTensors)},
        denominators=denominators("denominator"),
        auxiliary_denominators=denominators("auxiliary_denominator"),
        original_denominators=denominators("original_denominator"),
        sequence=sequence,
    )


@cache
def zigzag(width: int, cp: int, cp_rank: int) -> torch.Tensor:
    """The positions that a rank holds, [positions]: two of 2·cp equal chunks.

    The first chunk is paired with the last one, and so on, for equal work.
    """
    chunks = 2 * cp
    positions = torch.arange(-(-width // chunks) * chunks).view(chunks, -1)
    return positions[[cp_rank, chunks - 1 - cp_rank]].flatten()
