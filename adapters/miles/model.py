"""The probed model of miles' FSDP engine, wrapped as miles wraps its own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.distributed import device_mesh, fsdp

from adapters.contract import Depth, Job, Rank
from adapters.miles.driving import engine
from adapters.toolkit.probe import (
    SEAM,
    ForwardPasses,
    GradientReader,
    ProbedModel,
    probe_capacity,
)
from adapters.toolkit.worlds import cached


class ProbedOutput(NamedTuple):
    """A model's output, to whose tensors FSDP2 attaches backward hooks."""

    logits: torch.Tensor
    probe: torch.Tensor


class FsdpPolicy:
    """A model wrapped in FSDP2 by miles, its optimizer, and their recorders."""

    def __init__(self, capacity: int, mesh: Any, args: Any, rank: Rank) -> None:
        self.passes = ForwardPasses()
        bare = ProbedModel(capacity, self.passes, _head).to(rank.device)
        # Some versions hard-code bfloat16, which rounds the gradient to two digits.
        default = fsdp.MixedPrecisionPolicy()
        full_precision = mock.patch.object(fsdp, "MixedPrecisionPolicy", return_value=default)
        with nullcontext() if rank.dtype == "bfloat16" else full_precision:
            self.model = engine("actor").apply_fsdp2(bare, mesh=mesh, args=args)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=args.lr, weight_decay=args.weight_decay
        )
        self.gradients = GradientReader(self.optimizer)


def cached_policy(args: Any, job: Job, probe_size: int, rank: Rank) -> FsdpPolicy:
    """The policy for a job, cached until the world ends."""
    capacity = probe_capacity(probe_size)
    return cached(
        rank,
        (job.depth, capacity),
        lambda: FsdpPolicy(capacity, _mesh(rank, job.depth), args, rank),
    )


def _mesh(rank: Rank, depth: Depth) -> Any:
    """The mesh that miles shards over; a single rank at depths that end before the reduction."""
    if depth is not Depth.STEP:
        shape = (rank.world_size, 1)
        return device_mesh.init_device_mesh("cuda", shape, mesh_dim_names=("ranks", "one"))["one"]
    state = rank.cache["parallel_state"]
    return state.get_mesh("fsdp") if hasattr(state, "get_mesh") else state.dp_mesh


def _head(input_ids: torch.Tensor, probe: torch.Tensor) -> ProbedOutput:
    SEAM.probe = probe
    logits = torch.zeros(*input_ids.shape, SEAM.VOCABULARY, device=input_ids.device)
    return ProbedOutput(logits, probe)
