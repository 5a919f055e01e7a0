"""SkyRL with a mistake put in, or with the replacement that the adapter makes on GPUs."""

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
    """Reduces Megatron's gradients one by one, as the adapter does for GPUs that share gloo."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        from megatron.core.distributed import param_and_grad_buffer

        param_and_grad_buffer._coalescing_manager = megatron_core.one_by_one
        return super().observe(job, rank)


class PaddingCollides(SkyRLMegatronAdapter):
    """Fills padding micro-batches with token ids of samples, different ones in each."""

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
    """Also records padding micro-batches as if they were forward passes of samples."""

    def load(self, source: Path | None) -> None:
        super().load(source)
        PADDING_MICRO_BATCHES.drain = lambda: 0  # type: ignore[method-assign]
