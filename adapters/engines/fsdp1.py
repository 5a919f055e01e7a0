"""FSDP1 on CPUs: skips torch's GPU checks, gathers gradients, and frees models of ended worlds.

The gradients of FSDP2's steps are read in the same way.
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

    from reference.arrays import Gradient

WRAPPED: list[Any] = []
"""The models of this process's world, as FSDP wraps them."""


def initialise_on_cpu() -> None:
    """Disable a check of torch that requires a GPU."""
    fsdp1: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    fsdp1._check_module_states_for_sync_module_states = lambda _: None


def wrapping_on_cpu(home: Any) -> AbstractContextManager[Any]:
    """Let a framework's module wrap models on the CPU although it passes a GPU's number."""
    wrap = home.FSDP

    def wrap_on_cpu(*arguments: Any, device_id: int, **named: Any) -> Any:
        __tracebackhide__ = True
        return wrap(*arguments, device_id=torch.device("cpu"), **named)

    return mock.patch.object(home, "FSDP", wrap_on_cpu)


def whole(wrapped: Any, gradient: torch.Tensor) -> Gradient:
    """The probe's whole gradient, gathered from the shards of FSDP1, [capacity / shards]."""
    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))


def gradients_of_steps(owner: Any, model: Any) -> Records[Gradient | None]:
    """Records the probe's gradient, [capacity], at each ``optimizer_step`` of a model's owner.

    The gradient is None if the step was skipped because the gradient is not finite. Shards are
    gathered before the step, because in some frameworks each rank decides by its own shard whether
    to skip the step.
    `take_models_apart` must be called when the world ends.
    """
    WRAPPED.append(model)
    [probe] = [one for one in owner.optimizer.param_groups[0]["params"] if one.requires_grad]
    gathered, taken = Records["Gradient"](), Records["Gradient | None"]()
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
    """Clear the modules of all models of a world that ends, so that their memory is freed.

    FSDP1's views reference their parameter, and the parameter references its model with the views
    and the threads of process groups: a reference cycle that Python's garbage collector cannot see.
    """
    while WRAPPED:
        for module in [*WRAPPED.pop().modules()]:
            vars(module).clear()
