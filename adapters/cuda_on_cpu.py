"""Lets code that says "cuda" run on a machine that has none: its CUDA device is the CPU."""

from __future__ import annotations

import torch
from torch.distributed import device_mesh


def install() -> None:
    """Map the current CUDA device and CUDA device meshes to the CPU; nothing where CUDA is there.

    Call it before the framework is imported, as frameworks take these functions by name.
    """
    if torch.cuda.is_available():
        return
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    real_init_device_mesh = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: object, **kwargs: object) -> object:
        return real_init_device_mesh("cpu", *args, **kwargs)  # type: ignore[arg-type]

    device_mesh.init_device_mesh = init_device_mesh  # type: ignore[assignment]
    torch.distributed.init_device_mesh = init_device_mesh  # type: ignore[assignment]
