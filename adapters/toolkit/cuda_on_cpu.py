"""Lets CUDA code run on a machine without a GPU: its CUDA device is the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed import device_mesh
from torch.overrides import TorchFunctionMode


def install() -> None:
    """Map the current CUDA device and CUDA device meshes to the CPU, unless CUDA is available.

    All device memory is reported as free, so that frameworks skip clearing their cache. Call this
    function before importing the framework, because frameworks import the replaced functions by
    name.
    """
    if torch.cuda.is_available():
        return
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.mem_get_info = lambda device=None: (1, 1)
    real_init_device_mesh = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> device_mesh.DeviceMesh:
        return real_init_device_mesh("cpu", *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    torch.distributed.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


class NoStream:
    """A CUDA stream on a machine without a GPU, where nothing is queued."""

    def wait_stream(self, other: object) -> None:
        """Do nothing."""


def replace_streams() -> None:
    """Make CUDA streams do nothing, unless CUDA is available.

    Call this function before importing transformers, which uses the class of streams in
    annotations.
    """
    if torch.cuda.is_available():
        return
    cuda: Any = torch.cuda
    cuda.Stream, cuda.current_stream = NoStream, lambda device=None: NoStream()
    cuda.stream = lambda stream: nullcontext()


def describe_the_device() -> None:
    """Give the current CUDA device the CPU's random state and a version, unless CUDA is available.

    The version is that of a Blackwell GPU, 10.0.
    """
    if torch.cuda.is_available():
        return
    cuda: Any = torch.cuda
    cuda.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.get_device_properties = lambda device=None: SimpleNamespace(major=10, minor=0)


def number_the_device() -> None:
    """Make torch return the current CUDA device as an index, unless CUDA is available."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: 0


def torch_of_the_cpu() -> ModuleType:
    """A copy of the torch module in which every device is the CPU, for a framework's module."""
    found = ModuleType("torch")
    vars(found).update(vars(torch), device=lambda _: torch.device("cpu"))
    return found


def redirected() -> AbstractContextManager[object]:
    """Create CUDA tensors on the CPU, unless CUDA is available. Every torch call gets slower."""
    return nullcontext() if torch.cuda.is_available() else _CudaToCpu()


class _CudaToCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True  # attributes torch's errors to the caller, not the adapter
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)  # pinning only speeds up copies to a device
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], "cpu", *args[2:])
        return func(*args, **kwargs)


def _is_cuda(device: object) -> bool:
    if isinstance(device, int):
        return not isinstance(device, bool)
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
