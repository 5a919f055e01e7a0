"""Plain PyTorch, exact in every cell: the example to copy for an adapter of one's own.

`NativeAdapter` is the contract's part; the rest of the module is a small training framework such as
an adapter would find already written: `Trainer` shards samples over data-parallel ranks, cuts a
rank's samples into micro-batches, slices every sequence over context-parallel ranks, and sums
gradients over all of them. Its one rule is to take every denominator from the whole step before
cutting it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
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
from adapters.probe import FORWARD_PASSES, PADDING_ID, ProbedBatch
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from reference.aggregation import Aggregation

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

    def trainer(self, job: Job, rank: int) -> Trainer:
        """The framework's trainer for a job."""
        return Trainer(job.aggregation, job.layout, rank)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train one step of a batch after another and read the probe's gradient."""
        batch = ProbedBatch(job.steps)
        steps = _steps(batch)
        probe = torch.zeros(batch.probe_size, requires_grad=True, device=rank.device)
        FORWARD_PASSES.take()
        with rank.framework():
            trainer = self.trainer(job, rank.index)
            if job.depth is not Depth.STEP:
                losses = linear_losses if job.depth is Depth.REDUCER else trainer.token_losses
                shares = [trainer.accumulate(probe, samples, losses)[0] for samples in steps]
                return _observation(batch, shares, combine=Combine.SUM)
            trained = [trainer.train_step(probe, samples) for samples in steps]
        gradients, reported = zip(*trained, strict=True)
        return _observation(batch, gradients, reported=reported)


@dataclass(frozen=True, eq=False)
class SampleTensors:
    """One sample: token ids [prompt + response], and per token what its prediction is worth.

    ``advantages`` and ``mask`` are aligned with ``ids`` and 0 on the prompt. ``denominator`` is
    what the sample's masked loss sum is divided by to give its share of the step scalar.
    """

    ids: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    group: int
    denominator: float = float("nan")

    @property
    def tokens(self) -> int:
        """The number of active ones."""
        return int(self.mask.sum())


@dataclass(frozen=True, eq=False)
class Packed:
    """What one context-parallel rank holds of a micro-batch: tensors of one shape.

    The shape is [tokens] in thd and [samples, width] in bshd.
    """

    labels: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    denominators: torch.Tensor


class Trainer:
    """Trains one step after another on one rank; a method for each thing that can be got wrong."""

    def __init__(self, aggregation: Aggregation, layout: Layout, rank: int) -> None:
        self.aggregation = aggregation
        self.layout = layout
        self.dp_rank, self.cp_rank = divmod(rank, layout.cp)

    def train_step(
        self, probe: torch.Tensor, samples: list[SampleTensors]
    ) -> tuple[torch.Tensor, float]:
        """The gradient [probe] of the step scalar and the scalar itself, alike on all ranks."""
        gradient, losses = self.accumulate(probe, samples, self.token_losses)
        self.synchronise(gradient)
        return gradient, self.report(losses)

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: LossFunction
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's share of the gradient, and of the step scalar by micro-batch."""
        probe.grad = torch.zeros_like(probe)
        losses = []
        mine = self.shard(self.divided(samples))
        for micro_batch in self.cut(mine):
            packed = pack(micro_batch, self.layout, self.cp_rank)
            FORWARD_PASSES.note(packed.labels[packed.labels != PADDING_ID] - 1)
            loss = self.reduce(token_losses(probe[packed.labels], packed), packed)
            loss.backward()
            losses.append(loss.item())
        return probe.grad, torch.tensor(losses)

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with their denominators, from counts over the whole step."""
        return with_denominators(samples, denominators(samples, self.aggregation))

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """A contiguous share of the samples; shares differ in size by one at most."""
        shares = np.array_split(np.arange(len(samples)), self.layout.dp)
        return [samples[i] for i in shares[self.dp_rank]]

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        """Contiguous micro-batches; uneven ones hold 1, 2, 3, … samples."""
        if self.layout.micro_batches == "uneven":
            ends = np.cumsum(np.arange(1, len(samples) + 1))
            parts = np.split(np.arange(len(samples)), ends[ends < len(samples)])
        else:
            parts = np.array_split(np.arange(len(samples)), int(self.layout.micro_batches))
        return [[samples[i] for i in part] for part in parts if len(part)]

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Clipped policy-gradient loss of each token, 0 where masked (PPO, arXiv:1707.06347)."""
        ratio = torch.exp(log_probs - log_probs.detach())
        clipped = ratio.clamp(1 - RATIO_CLIP, 1 + RATIO_CLIP)
        loss = torch.maximum(-packed.advantages * ratio, -packed.advantages * clipped)
        return torch.where(packed.mask, loss, 0)

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        """What a micro-batch adds to the step scalar on this rank."""
        return (token_losses / packed.denominators).sum()

    def synchronise(self, gradient: torch.Tensor) -> None:
        """Add up the gradients of all ranks."""
        if self.layout.world_size > 1:
            dist.all_reduce(gradient)

    def report(self, losses: torch.Tensor) -> float:
        """The step scalar, from the losses of this rank's micro-batches."""
        loss = losses.sum()
        if self.layout.world_size > 1:
            dist.all_reduce(loss)
        return float(loss)


def linear_losses(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Losses without a policy, 0 where masked: what depth `reducer` feeds the reduction with."""
    return torch.where(packed.mask, -packed.advantages * log_probs, 0)


def denominators(samples: Sequence[SampleTensors], aggregation: Aggregation) -> list[float]:
    """What the masked loss sum of each of a step's samples is divided by."""
    tokens = [max(sample.tokens, 1) for sample in samples]
    if aggregation.mode is Mode.SAMPLE_MEAN:
        return [float(len(samples) * count) for count in tokens]
    if aggregation.mode is Mode.PROMPT_MEAN:
        of_group = tokens_of_groups(samples)
        return [float(len(of_group) * max(of_group[sample.group], 1)) for sample in samples]
    if aggregation.mode is Mode.TOKEN_MEAN:
        return [float(max(sum(sample.tokens for sample in samples), 1))] * len(samples)
    assert aggregation.divisor is not None
    return [aggregation.divisor * len(samples)] * len(samples)


def tokens_of_groups(samples: Sequence[SampleTensors]) -> Counter[int]:
    """Active tokens of each prompt group among some samples."""
    tokens: Counter[int] = Counter()
    for sample in samples:
        tokens[sample.group] += sample.tokens
    return tokens


def with_denominators(
    samples: Sequence[SampleTensors], divide_by: Sequence[float]
) -> list[SampleTensors]:
    """The samples, each with its denominator."""
    return [
        replace(sample, denominator=denominator)
        for sample, denominator in zip(samples, divide_by, strict=True)
    ]


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


def _steps(batch: ProbedBatch) -> list[list[SampleTensors]]:
    """The samples of each step."""
    groups = np.concatenate([step.groups for step in batch.steps])
    samples = (
        SampleTensors(
            ids=torch.from_numpy(np.concatenate([prompt, response])),
            advantages=_on_response(prompt, advantages.astype(np.float32)),
            mask=_on_response(prompt, mask),
            group=int(group),
        )
        for group, prompt, response, advantages, mask in zip(
            groups, batch.prompts, batch.responses, batch.advantages, batch.masks, strict=True
        )
    )
    return [list(islice(samples, step.size)) for step in batch.steps]


def _on_response(prompt: NDArray[Any], values: NDArray[Any]) -> torch.Tensor:
    """Values of a response, with zeros for its prompt before them."""
    return torch.from_numpy(np.concatenate([np.zeros(len(prompt), values.dtype), values]))


def _observation(
    batch: ProbedBatch,
    gradients: Sequence[torch.Tensor],
    *,
    combine: Combine = Combine.REPLICATED,
    reported: tuple[float, ...] = (),
) -> Observation:
    return Observation(
        weights=batch.weights_of_steps([gradient.cpu().numpy() for gradient in gradients]),
        combine=combine,
        forward_passes=batch.forward_passes(FORWARD_PASSES.take()),
        reported=reported,
    )
