"""Stubs of packages that slime and miles import and a training step never enters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from adapters.toolkit.imports import stub, stub_missing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

SERVER_PACKAGES = (
    "aiohttp",
    "blake3",
    "fastapi",
    "megatron.training",
    "mooncake",
    "openai",
    "polars",
    "pylatexenc",
    "qwen_vl_utils",
    "ring_flash_attn",
    "sglang",
    "sglang_router",
    "starlette",
    "structlog",
    "tensorboard",
    "torch_memory_saver",
    "uvicorn",
    "wandb",
    "zmq",
)
"""Servers, trackers and GPU kernels."""

OBJECT_STORE = SimpleNamespace(put=lambda value: value, get=lambda value: value)
"""Replaces Ray's object store."""

STUBBED: list[str] = []
"""What `install` stubbed in this process."""


def install(plugins: Sequence[str], kernels: Sequence[str]) -> None:
    """Prepare this process for importing Megatron-Core and a framework that trains with it.

    ``plugins`` are stubbed if missing, ``kernels``, modules of GPU kernels only, always.
    """
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    stub(kernels)
    STUBBED.extend([*stub_missing([*SERVER_PACKAGES, *plugins]), *kernels])


def drop_server_options(*modules: ModuleType) -> None:
    """Keep sglang's options out of a framework's parser, as no train step reads them."""
    for module in modules:
        for name in ("RouterArgs", "ServerArgs"):
            options = getattr(module, name, None)
            if options is not None:
                options.add_cli_args = staticmethod(lambda *args, **kwargs: None)
