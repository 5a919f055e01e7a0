"""SkyRL with one mistake put in, or as it is driven where there is other hardware."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from adapters.engines import megatron_core
from adapters.skyrl.adapter import WORKER_UTILS, SkyRLMegatronAdapter
from adapters.skyrl.importing import PADDING_MICRO_BATCHES, module

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Job, Observation, Rank


class OneByOne(SkyRLMegatronAdapter):
    """Megatron's gradients are reduced as they are over gloo where they are on a GPU."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        from megatron.core.distributed import param_and_grad_buffer

        param_and_grad_buffer._coalescing_manager = megatron_core.one_by_one
        return super().observe(job, rank)


class PaddingCollides(SkyRLMegatronAdapter):
    """Padding micro-batches hold tokens of samples, different ones each time."""

    def load(self, source: Path | None) -> None:
        super().load(source)
        iterator = module(WORKER_UTILS).TokenBasedBatchIterator
        make, numbers = iterator._create_padding_microbatch, count()

        def colliding(batches: Any) -> Any:
            batch = make(batches)
            sequences = batch["sequences"]
            ids = 1 + (torch.arange(sequences.numel()) + 17 * next(numbers)) % 50
            batch["sequences"] = ids.reshape(sequences.shape).to(sequences)
            return batch

        iterator._create_padding_microbatch = colliding


class PaddingKept(PaddingCollides):
    """In addition, the harness takes padding micro-batches for micro-batches of samples."""

    def load(self, source: Path | None) -> None:
        super().load(source)
        PADDING_MICRO_BATCHES.drain = lambda: 0  # type: ignore[method-assign]
