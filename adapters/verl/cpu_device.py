"""What a device module of torch answers for the CPU, in the place of `torch.cuda`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

CPU = torch.device("cpu")


def method(answer: object) -> Any:
    """What only a device with memory or streams of its own has to do: here it has one answer."""
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
"""Takes the place of `torch.cuda`."""


def complete_torch_cpu() -> None:
    """Give `torch.cpu` what a device module has: older verl asks it where there is no GPU."""
    for name, answer in vars(DEVICE_MODULE).items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, answer)
