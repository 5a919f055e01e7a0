"""A world of ranks: its cache, its observations, and the environment that frameworks expect."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from adapters.contract import Metric, Observation, Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import torch

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Gradient, Integers

_Kept = TypeVar("_Kept")
RECORDERS = ("gradients", "passes", "counted_tokens")
"""Attributes of cached objects that record a job."""


def cached(rank: Rank, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
    """A world's cached object of this key, made if missing; records of earlier jobs are dropped."""
    if key not in rank.cache:
        rank.cache[key] = make()
    kept: _Kept = rank.cache[key]
    for name in RECORDERS:
        if hasattr(kept, name):
            getattr(kept, name).drain()
    return kept


def observation(
    batch: ProbedBatch,
    gradients: Sequence[Gradient | None],
    passes: Sequence[Integers],
    reported: Mapping[Metric, tuple[float | None, ...]],
    **others: Any,
) -> Observation:
    """The observation of a rank, from the probe's gradient in each step and the forward passes.

    A step without a gradient was skipped.
    """
    return Observation(
        token_weights=batch.weights_of_steps(gradients),
        reported=reported,
        forward_passes=batch.forward_passes(passes),
        rows=batch.rows(passes),
        own_losses=batch.own_losses(gradients),
        skipped_steps=frozenset(index for index, one in enumerate(gradients) if one is None),
        **others,
    )


def all_gather(value: Any, group: Any = None) -> list[Any]:
    """The values of all ranks of a group, by default of the world."""
    import torch.distributed as dist

    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)
    return values


def make_on_first_rank(rank: Rank, make: Callable[[], _Kept]) -> _Kept:
    """An object that the first rank makes and sends to all, for frameworks of a single process."""
    if rank.world_size == 1:
        return make()
    import torch.distributed as dist

    made = [make() if rank.index == 0 else None]
    dist.broadcast_object_list(made)
    [sent] = made
    return sent  # type: ignore[return-value] # what the first rank made


def set_what_ray_sets(rank: Rank) -> None:
    """Set a rank's environment variables; no address is used, because the process group exists."""
    os.environ |= {"RANK": str(rank.index), "WORLD_SIZE": str(rank.world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.setdefault("LOCAL_RANK", "0")


def sum_gradients_of_all_gather() -> None:
    """Let the backward pass of torch's all_gather sum by all_reduce, unless CUDA is available.

    With gloo, torch confuses a rank's index in the group with its rank in the world. This fails in
    every group that does not consist of the world's first ranks.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.nn import functional

    if torch.cuda.is_available():
        return

    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        summed = torch.stack([each.contiguous() for each in gradients])
        dist.all_reduce(summed, group=ctx.group)
        return None, summed[dist.get_rank(ctx.group)]

    gather: Any = functional._AllGather
    gather.backward = staticmethod(backward)
