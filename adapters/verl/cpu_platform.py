"""The CPU as a platform of verl, where there is no GPU: an extension point of verl's own."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform

CPU = torch.device("cpu")


def _method(answer: object) -> Any:
    """What only a device with memory or streams of its own has to do: here it has one answer."""
    return lambda *_, **__: answer


DEVICE_MODULE = SimpleNamespace(
    is_available=_method(True),
    current_device=_method(CPU),
    get_device_name=_method("cpu"),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    mem_get_info=_method((1, 1)),
    **dict.fromkeys(("device_count", "memory_allocated", "memory_reserved"), _method(0)),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _method(0)),
    **dict.fromkeys(("set_device", "synchronize", "empty_cache"), _method(None)),
    reset_peak_memory_stats=_method(None),
)
"""Takes the place of `torch.cuda`."""


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]  # of an untyped package
    """The CPU, with gloo."""

    device_name = vendor_name = "cpu"
    device_module = DEVICE_MODULE
    is_available = is_platform_available = _method(True)
    current_device = _method(CPU)
    device_count = _method(1)
    communication_backend_name = _method("gloo")
    visible_devices_envvar = _method("CUDA_VISIBLE_DEVICES")
    ray_resource_name = _method("CPU")
    ray_noset_envvars = _method(())
    get_device_capability = _method((None, None))
    is_ipc_supported = _method(False)
    nvtx_range = _method(contextlib.nullcontext())
    manual_seed = manual_seed_all = _method(None)
    set_device = synchronize = empty_cache = set_allocator_settings = _method(None)
    profiler_start = profiler_stop = cudart = _method(None)


def choose() -> None:
    """Make it verl's platform, before an engine asks for one."""
    set_platform(CpuPlatform())
