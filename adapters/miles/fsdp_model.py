"""The probed model of miles' FSDP engine, wrapped as miles wraps its own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from adapters.contract import Depth, Job, Rank
from adapters.engines import fsdp2
from adapters.miles.importing import engine
from adapters.slime_family.model import SEAM
from adapters.toolkit.probe import ForwardPasses, GradientReader, ProbedModel, probe_capacity


class Output(NamedTuple):
    """A model's output; FSDP2 hooks its backward pass to the tensors in it."""

    logits: torch.Tensor
    probe: torch.Tensor


class Policy:
    """A model that miles wrapped in FSDP2, its optimizer and what both record."""

    def __init__(self, capacity: int, mesh: Any, args: Any, rank: Rank) -> None:
        self.passes = ForwardPasses()
        bare = ProbedModel(capacity, self.passes, _head).to(rank.device)
        # Some versions hard-code bfloat16.
        with nullcontext() if rank.dtype == "bfloat16" else fsdp2.full_precision():
            self.model = engine("actor").apply_fsdp2(bare, mesh=mesh, args=args)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=args.lr, weight_decay=args.weight_decay
        )
        self.gradients = GradientReader(self.optimizer)


def cached_policy(args: Any, job: Job, probe_size: int, rank: Rank) -> Policy:
    """The policy for a job, cached as long as the world."""
    capacity = probe_capacity(probe_size)
    key = (job.depth, capacity)
    if key not in rank.cache:
        mesh = _mesh(rank) if job.depth is Depth.STEP else fsdp2.mesh_of_one(rank)
        rank.cache[key] = Policy(capacity, mesh, args, rank)
    policy: Policy = rank.cache[key]
    policy.gradients.drain()
    policy.passes.drain()
    return policy


def _mesh(rank: Rank) -> Any:
    """The mesh of the ranks that miles shards over."""
    state = rank.cache["parallel_state"]
    return state.get_mesh("fsdp") if hasattr(state, "get_mesh") else state.dp_mesh


def _head(input_ids: torch.Tensor, probe: torch.Tensor) -> Output:
    SEAM.probe = probe
    logits = torch.zeros(*input_ids.shape, SEAM.VOCABULARY, device=input_ids.device)
    return Output(logits, probe)
