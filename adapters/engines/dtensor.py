"""Sharded tensors of torch, in processes that join one world after another."""

from __future__ import annotations


def leave_world() -> None:
    """Forget reductions of sharded tensors: torch keeps the groups of the first mesh of a shape."""
    from torch.distributed.tensor import debug

    debug._clear_sharding_prop_cache()
