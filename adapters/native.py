"""Plain PyTorch, exact in every cell: the example to copy for an adapter of one's own.

`NativeAdapter` is the contract's part; the rest of the module is a small training framework such as
an adapter would find already written: it shards samples over data-parallel ranks, cuts a rank's
samples into micro-batches, slices every sequence over context-parallel ranks, and sums gradients
over all of them. Its one rule is to take every denominator from the whole step before cutting it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract import (
    Adapter,
    Combine,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Rank,
    grids,
)
from adapters.probe import PADDING_ID, ProbedBatch
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from reference.aggregation import Aggregation
    from reference.step import Step

    LossFunction = Callable[[torch.Tensor, "Packed"], torch.Tensor]

RATIO_CLIP = 0.2


class NativeAdapter(Adapter):
    """Drives the framework below at all depths, in all modes and layouts."""

    name = "native"

    def layouts(self) -> Sequence[Layout]:
        """Every dp × cp of powers of two on up to 8 ranks."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in grids(largest=8)
            for micro_batches in (1, 2, "uneven")
            for storage in ("thd", "bshd")
        ]

    def load(self, source: Path | None) -> None:
        """Nothing to import: the framework is this module."""

    def describe(self) -> Description:
        """Everything that can be declared, as nothing is missing."""
        return Description()

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train one step of a batch after another and read the probe's gradient."""
        weights = [self._observe_step(step, job, rank) for step in job.steps]
        combine = Combine.REPLICATED if job.depth is Depth.STEP else Combine.SUM
        return Observation(weights=tuple(weights), combine=combine)

    def denominators(self, step: Step, aggregation: Aggregation) -> list[float]:
        """What each sample's masked loss sum is divided by."""
        return denominators(step, aggregation)

    def _observe_step(self, step: Step, job: Job, rank: Rank) -> NDArray[np.float64]:
        batch = ProbedBatch((step,))
        samples = _tensors(batch, self.denominators(step, job.aggregation))
        probe = torch.zeros(batch.probe_size, requires_grad=True, device=rank.device)
        with rank.framework():
            if job.depth is Depth.STEP:
                train_step(probe, samples, job.layout, rank.index)
            else:
                loss = token_loss if job.depth is Depth.REDUCER else policy_loss
                accumulate(probe, samples, job.layout, rank.index, loss)
        assert probe.grad is not None
        return batch.weights(probe.grad.cpu().numpy())


@dataclass(frozen=True, eq=False)
class SampleTensors:
    """One sample: token ids [prompt + response], and per token what its prediction is worth.

    ``advantages`` and ``mask`` are aligned with ``ids`` and 0 on the prompt. ``denominator`` is
    what the sample's masked loss sum is divided by to give its share of the step scalar.
    """

    ids: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    denominator: float


def denominators(step: Step, aggregation: Aggregation) -> list[float]:
    """What each sample's masked loss sum is divided by, from counts over the whole step."""
    tokens = step.active_tokens
    if aggregation.mode is Mode.SAMPLE_MEAN:
        return [float(step.size * max(count, 1)) for count in tokens]
    if aggregation.mode is Mode.PROMPT_MEAN:
        groups, group_of_sample = np.unique(step.groups, return_inverse=True)
        group_tokens = np.bincount(group_of_sample, weights=tokens)
        return [float(len(groups) * max(group_tokens[g], 1)) for g in group_of_sample]
    if aggregation.mode is Mode.TOKEN_MEAN:
        return [float(max(tokens.sum(), 1))] * step.size
    assert aggregation.divisor is not None
    return [aggregation.divisor * step.size] * step.size


def train_step(
    probe: torch.Tensor, samples: list[SampleTensors], layout: Layout, rank: int
) -> None:
    """Leave the gradient of the step scalar in ``probe.grad`` on every rank."""
    accumulate(probe, samples, layout, rank, policy_loss)
    if layout.world_size > 1:
        dist.all_reduce(probe.grad)


def accumulate(
    probe: torch.Tensor, samples: list[SampleTensors], layout: Layout, rank: int, loss: LossFunction
) -> None:
    """Add up the gradients of this rank's micro-batches in ``probe.grad``."""
    probe.grad = torch.zeros_like(probe)
    dp_rank, cp_rank = divmod(rank, layout.cp)
    mine = shard(samples, layout.dp, dp_rank)
    for micro_batch in cut(mine, layout.micro_batches):
        packed = pack(micro_batch, layout, cp_rank)
        log_probs = probe[packed.labels]
        (loss(log_probs, packed) / packed.denominators).sum().backward()


def policy_loss(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Clipped policy-gradient loss of each token, 0 where masked (PPO, arXiv:1707.06347)."""
    ratio = torch.exp(log_probs - log_probs.detach())
    clipped = ratio.clamp(1 - RATIO_CLIP, 1 + RATIO_CLIP)
    loss = torch.maximum(-packed.advantages * ratio, -packed.advantages * clipped)
    return torch.where(packed.mask, loss, 0)


def token_loss(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """A loss without a policy, 0 where masked: what depth `reducer` feeds the reduction with."""
    return torch.where(packed.mask, -packed.advantages * log_probs, 0)


def shard(samples: list[SampleTensors], dp: int, dp_rank: int) -> list[SampleTensors]:
    """A contiguous share of the samples; shares differ in size by one at most."""
    shares = np.array_split(np.arange(len(samples)), dp)
    return [samples[i] for i in shares[dp_rank]]


def cut(samples: list[SampleTensors], micro_batches: int | str) -> list[list[SampleTensors]]:
    """Contiguous micro-batches; uneven ones hold 1, 2, 3, … samples."""
    if micro_batches == "uneven":
        ends = np.cumsum(np.arange(1, len(samples) + 1))
        borders = ends[ends < len(samples)]
        parts = np.split(np.arange(len(samples)), borders)
    else:
        parts = np.array_split(np.arange(len(samples)), int(micro_batches))
    return [[samples[i] for i in part] for part in parts if len(part)]


@dataclass(frozen=True, eq=False)
class Packed:
    """What one context-parallel rank holds of a micro-batch: tensors of one shape.

    The shape is [tokens] in thd and [samples, width] in bshd.
    """

    labels: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    denominators: torch.Tensor


def pack(micro_batch: list[SampleTensors], layout: Layout, cp_rank: int) -> Packed:
    """Slice every sequence and join the slices, end to end (thd) or padded to one width (bshd)."""
    lengths = [len(sample.ids) for sample in micro_batch]
    widths = lengths if layout.format == "thd" else [max(lengths)] * len(lengths)
    join = torch.cat if layout.format == "thd" else torch.stack
    slices = [
        zigzag(sample, width, layout.cp, cp_rank)
        for sample, width in zip(micro_batch, widths, strict=True)
    ]
    return Packed(*(join(parts) for parts in zip(*slices, strict=True)))


def zigzag(
    sample: SampleTensors, width: int, cp: int, cp_rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two of 2·cp equal chunks that a rank holds, first and last paired for equal work.

    A position is worth what it predicts, the token after it, which may lie in another chunk: labels
    are shifted before slicing.
    """
    chunks = 2 * cp
    padded = -(-width // chunks) * chunks

    def take(values: torch.Tensor, filler: float) -> torch.Tensor:
        shifted = torch.full((padded,), filler, dtype=values.dtype)
        shifted[: len(values) - 1] = values[1:]
        parts = shifted.chunk(chunks)
        return torch.cat([parts[cp_rank], parts[chunks - 1 - cp_rank]])

    denominator = torch.full((padded // cp,), sample.denominator)
    return (
        take(sample.ids, PADDING_ID),
        take(sample.advantages, 0.0),
        take(sample.mask, False),
        denominator,
    )


def _tensors(batch: ProbedBatch, sample_denominators: list[float]) -> list[SampleTensors]:
    def on_response(prompt: NDArray[Any], values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(len(prompt), values.dtype), values]))

    return [
        SampleTensors(
            ids=torch.from_numpy(np.concatenate([prompt, response])),
            advantages=on_response(prompt, advantages.astype(np.float32)),
            mask=on_response(prompt, mask),
            denominator=denominator,
        )
        for prompt, response, advantages, mask, denominator in zip(
            batch.prompts,
            batch.responses,
            batch.advantages,
            batch.masks,
            sample_denominators,
            strict=True,
        )
    ]
