"""Imports OpenRLHF on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.toolkit import worlds
from adapters.toolkit.imports import import_from, modules_of, provide, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

module = modules_of("openrlhf")

STUBBED: list[str] = []  # packages stubbed in this process

OF_SERVERS = ("vllm", "ring_flash_attn")
"""Packages of rollout servers and of attention, of which the trained model has none."""


def import_openrlhf(source: Path | None) -> None:
    """Import the trainer with its actors."""
    import torch

    from adapters.engines import deepspeed
    from adapters.toolkit import cuda_on_cpu

    cuda_on_cpu.install()
    cuda_on_cpu.number_the_device()
    deepspeed.import_deepspeed()
    _replace_gpu_packages()
    import_from("openrlhf", [source] if source else [])
    # Compiling takes longer than any step.
    with mock.patch.object(torch, "compile", lambda function: function):
        module("models")


@cache
def _replace_gpu_packages() -> None:
    # These look for flash_attn and must not find our stand-in.
    for name in ("transformers.modeling_utils", "peft"):
        importlib.import_module(name)
    STUBBED.extend(stub_missing(OF_SERVERS))
    if importlib.util.find_spec("flash_attn") is None:
        _provide_flash_attn()


def _provide_flash_attn() -> None:
    """Provide what OpenRLHF imports of flash_attn: packing of rows, and a collective."""
    import torch
    from einops import rearrange
    from torch.distributed.nn import functional

    def all_gather(part: torch.Tensor, group: Any) -> torch.Tensor:
        """The parts of all ranks, one after another; gradients are summed over ranks."""
        return torch.cat(functional.all_gather(part.contiguous(), group))

    worlds.sum_gradients_of_all_gather()
    packing: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    provide("flash_attn")
    provide(
        "flash_attn.bert_padding",
        index_first_axis=lambda values, indices: values[indices],
        pad_input=packing._pad_input,
        rearrange=rearrange,
        unpad_input=packing._unpad_input,
    )
    provide("flash_attn.utils")
    provide("flash_attn.utils.distributed", all_gather=all_gather)
