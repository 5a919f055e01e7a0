"""FSDP1 on CPUs: what torch checks, shards of gradients, and models that outlive their world.

Gradients of steps are read in the same way of FSDP2.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist

from adapters.toolkit.probe import GradientReader, Records, as_array

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

WRAPPED: list[Any] = []
"""The models of this process's world, as FSDP wraps them."""


def initialise_on_cpu() -> None:
    """Pass by a check of torch's that wants a GPU."""
    fsdp1: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    fsdp1._check_module_states_for_sync_module_states = lambda _: None


def wrapping_on_cpu(home: Any) -> AbstractContextManager[Any]:
    """Let a module of a framework that names a GPU by its number wrap models on the CPU."""
    wrap = home.FSDP

    def wrap_on_cpu(*arguments: Any, device_id: int, **named: Any) -> Any:
        __tracebackhide__ = True
        return wrap(*arguments, device_id=torch.device("cpu"), **named)

    return mock.patch.object(home, "FSDP", wrap_on_cpu)


def whole(wrapped: Any, gradient: torch.Tensor) -> NDArray[np.float32]:
    """The probe's whole gradient: FSDP1 leaves each rank a shard of it, [capacity / shards]."""
    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))


def gradients_of_steps(owner: Any, model: Any) -> Records[NDArray[np.float32] | None]:
    """Records the probe's gradient, [capacity], of each ``optimizer_step`` of a model's owner.

    It is None if the step was skipped because it is not finite. Shards are gathered before the
    step, as some frameworks skip one by the shard of each rank alone. The model is taken apart
    when its world ends.
    """
    WRAPPED.append(model)
    [probe] = [one for one in owner.optimizer.param_groups[0]["params"] if one.requires_grad]
    gathered, taken = Records["NDArray[np.float32]"](), Records["NDArray[np.float32] | None"]()
    reader = GradientReader(owner.optimizer, lambda _: gathered.drain()[-1])
    step = owner.optimizer_step

    def optimizer_step() -> Any:
        __tracebackhide__ = True
        shard = torch.zeros_like(probe) if probe.grad is None else probe.grad
        gathered.append(whole(model, shard))
        norm = step()
        taken.append(reader.take())
        return norm

    owner.optimizer_step = optimizer_step
    return taken


def take_models_apart() -> None:
    """Take the models of a world that ends apart.

    FSDP1's views of a parameter hold it, and the parameter holds its model with the views and the
    threads of its groups: a cycle that Python's garbage collector cannot see.
    """
    while WRAPPED:
        for module in [*WRAPPED.pop().modules()]:
            vars(module).clear()
