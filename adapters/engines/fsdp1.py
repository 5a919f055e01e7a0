"""FSDP1 on CPUs: what torch checks, shards of gradients, and models that outlive their world."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from adapters.toolkit.probe import as_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WRAPPED: list[Any] = []
"""The models of this process's world, as FSDP wraps them."""


def initialise_on_cpu() -> None:
    """Pass by a check of torch's that wants a GPU."""
    fsdp1: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    fsdp1._check_module_states_for_sync_module_states = lambda _: None


def whole(wrapped: Any, gradient: torch.Tensor) -> NDArray[np.float32]:
    """The probe's whole gradient: FSDP1 leaves each rank a shard of it, [capacity / shards]."""
    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))


def take_models_apart() -> None:
    """Take the models of a world that ends apart.

    FSDP1's views of a parameter hold it, and the parameter holds its model with the views and the
    threads of its groups: a cycle that Python's garbage collector cannot see.
    """
    while WRAPPED:
        for module in [*WRAPPED.pop().modules()]:
            vars(module).clear()
