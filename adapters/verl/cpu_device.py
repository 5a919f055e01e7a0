"""A device module of torch for the CPU, in place of `torch.cuda`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

CPU = torch.device("cpu")


def method(answer: object) -> Any:
    """A stub, with a fixed answer, of a function that manages a device's memory or streams."""
    return lambda *_, **__: answer


DEVICE_MODULE = SimpleNamespace(
    is_available=method(True),
    current_device=method(CPU),
    get_device_name=method("cpu"),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    mem_get_info=method((1, 1)),
    **dict.fromkeys(("device_count", "memory_allocated", "memory_reserved"), method(0)),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), method(0)),
    **dict.fromkeys(("set_device", "synchronize", "empty_cache"), method(None)),
    reset_peak_memory_stats=method(None),
)
"""Replaces `torch.cuda`."""


def complete_torch_cpu() -> None:
    """Add the functions of a device module to `torch.cpu`, which older verl uses without a GPU."""
    for name, answer in vars(DEVICE_MODULE).items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, answer)
