"""Collectives of torch that fail over gloo, by others with the same result."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn import functional


def sum_gradients_of_all_gather() -> None:
    """Let gradients of torch's all_gather be summed by an all_reduce, unless CUDA is available.

    With gloo torch scatters them from each rank of the group by its number in the world, which
    fails in every group but that of the first ranks.
    """
    if torch.cuda.is_available():
        return

    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        summed = torch.stack([each.contiguous() for each in gradients])
        dist.all_reduce(summed, group=ctx.group)
        return None, summed[dist.get_rank(ctx.group)]

    gather: Any = functional._AllGather
    gather.backward = staticmethod(backward)
