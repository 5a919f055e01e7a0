"""The collective of flash_attn by which ring attention puts sequences together again."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class _AllGather(torch.autograd.Function):
    """Concatenates the ranks' tensors; gradients are summed, and each rank has its own part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def all_gather(part: torch.Tensor, group: Any) -> torch.Tensor:
    """The parts of all ranks of a group, one after another in their first dimension."""
    apply: Any = _AllGather.apply
    gathered: torch.Tensor = apply(part, group)
    return gathered
