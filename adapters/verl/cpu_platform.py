"""The CPU as a platform of verl, through verl's own extension point, on machines without a GPU."""

from __future__ import annotations

import contextlib

from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform

from adapters.verl.cpu_device import CPU, DEVICE_MODULE, method


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU, with gloo."""

    device_name = vendor_name = "cpu"
    device_module = DEVICE_MODULE
    is_available = is_platform_available = method(True)
    current_device = method(CPU)
    device_count = method(1)
    communication_backend_name = method("gloo")
    visible_devices_envvar = method("CUDA_VISIBLE_DEVICES")
    ray_resource_name = method("CPU")
    ray_noset_envvars = method(())
    get_device_capability = method((None, None))
    is_ipc_supported = method(False)
    nvtx_range = method(contextlib.nullcontext())
    manual_seed = manual_seed_all = method(None)
    set_device = synchronize = empty_cache = set_allocator_settings = method(None)
    profiler_start = profiler_stop = cudart = method(None)


def choose() -> None:
    """Make it verl's platform, before an engine asks for one."""
    set_platform(CpuPlatform())
