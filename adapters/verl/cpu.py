"""The CPU as verl's device if there is no GPU, through verl's own extension point of platforms."""

from __future__ import annotations

import contextlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import torch

from adapters.verl.importing import module

CPU = torch.device("cpu")


def method(answer: object) -> Any:
    """A stub, with a fixed result, of a function that manages a device's memory or streams."""
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

PLATFORM: dict[str, Any] = {
    **dict.fromkeys(("device_name", "vendor_name"), "cpu"),
    "device_module": DEVICE_MODULE,
    **dict.fromkeys(("is_available", "is_platform_available"), method(True)),
    "current_device": method(CPU),
    "device_count": method(1),
    "communication_backend_name": method("gloo"),
    "visible_devices_envvar": method("CUDA_VISIBLE_DEVICES"),
    "ray_resource_name": method("CPU"),
    "ray_noset_envvars": method(()),
    "get_device_capability": method((None, None)),
    "is_ipc_supported": method(False),
    "nvtx_range": method(contextlib.nullcontext()),
    **dict.fromkeys(("manual_seed", "manual_seed_all", "set_device"), method(None)),
    **dict.fromkeys(("synchronize", "empty_cache", "set_allocator_settings"), method(None)),
    **dict.fromkeys(("profiler_start", "profiler_stop", "cudart"), method(None)),
}
"""The attributes of the CPU as a platform of verl, with gloo."""


def choose() -> None:
    """Make the CPU verl's device, through verl's platforms or, in older versions, `torch.cpu`."""
    if importlib.util.find_spec("verl.plugin") is None:
        for name, answer in vars(DEVICE_MODULE).items():
            if not hasattr(torch.cpu, name):
                setattr(torch.cpu, name, answer)
        return
    platforms = module("plugin.platform")
    registered = platforms.PlatformRegistry.register(platform="cpu")
    platforms.set_platform(registered(type("CpuPlatform", (platforms.PlatformBase,), PLATFORM))())


def register_engines(home: Any, prefix: str, *backends: str) -> None:
    """Register the engines of a module for the CPU."""
    register = module("workers.engine").EngineRegistry.register
    for model, head in (("language_model", "LMHead"), ("value_model", "ValueHead")):
        engine = getattr(home, f"{prefix}EngineWith{head}")
        register(model_type=model, backend=[*backends], device="cpu")(engine)
