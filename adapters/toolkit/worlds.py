"""A world of ranks: what is kept and observed in it, and what frameworks take for granted there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from adapters.contract import Observation
from adapters.contract.logged import LOGGED

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from adapters.contract import Rank
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.contract.objective import Metric

_Kept = TypeVar("_Kept")
RECORDERS = ("gradients", "passes", "counted_tokens")
"""Attributes of what is cached that record a job."""


def cached(rank: Rank, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
    """An object that a world keeps under a key; records of earlier jobs are dropped."""
    if key not in rank.cache:
        rank.cache[key] = make()
    kept: _Kept = rank.cache[key]
    for name in RECORDERS:
        if hasattr(kept, name):
            getattr(kept, name).drain()
    return kept


def observation(
    batch: ProbedBatch,
    gradients: Sequence[NDArray[np.float32] | None],
    passes: Sequence[NDArray[np.int64]],
    reported: Mapping[Metric, tuple[float | None, ...]],
    **others: Any,
) -> Observation:
    """The observation of a rank, from the probe's gradients of steps and its forward passes.

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


def numbers(
    names: Mapping[Metric, str], logs: Sequence[Mapping[str, Any]]
) -> dict[Metric, tuple[float | None, ...]]:
    """The metrics by their names in logs, with a number of each log; None where it lacks one.

    All other numbers are noted in `LOGGED`.
    """
    LOGGED.note(logs)
    return {
        metric: tuple(float(log[name]) if name in log else None for log in logs)
        for metric, name in names.items()
        if any(name in log for log in logs)
    }


def all_gather(value: Any, group: Any = None) -> list[Any]:
    """The value of each rank of a group, or of the world."""
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
    """Name a rank in environment variables; no address is called, as the process group exists."""
    os.environ |= {"RANK": str(rank.index), "WORLD_SIZE": str(rank.world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.setdefault("LOCAL_RANK", "0")


def sum_gradients_of_all_gather() -> None:
    """Let gradients of torch's all_gather be summed by an all_reduce, unless CUDA is available.

    With gloo torch scatters them from each rank of the group by its number in the world, which
    fails in every group but that of the first ranks.
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
