"""Imports OpenRLHF on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.toolkit.imports import import_from, provide, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

STUBBED: list[str] = []  # packages stubbed in this process

OF_SERVERS = ("vllm", "ring_flash_attn")
"""Packages of rollout servers and of attention, of which the trained model has none."""

USERS_OF_RAY = (
    "trainer.ppo_trainer",
    "trainer.ppo_utils.experience_maker",
    "trainer.ray.launcher",
)
"""Modules that hand data to Ray's processes and wait for answers."""


def import_openrlhf(source: Path | None) -> None:
    """Import the trainer with its actors, and put the probe and the seams into them."""
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
    _put_the_seams_in()


def module(path: str) -> Any:
    """Import a module of OpenRLHF by its path below the package."""
    return importlib.import_module(f"openrlhf.{path}")


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
    from einops import rearrange

    from adapters.openrlhf.collectives import all_gather

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


@cache
def _put_the_seams_in() -> None:
    """Once in a process: Ray's calls, the order of rows, the optimizer and the model's outputs."""
    from adapters.engines.deepspeed import made_once, with_torch_adam
    from adapters.openrlhf import model

    calls = SimpleNamespace(get=lambda references: references, put=lambda value: value)
    for path in USERS_OF_RAY:
        module(path).ray = calls
    for path in ("trainer.ray.ppo_actor", "trainer.ray.ppo_critic"):
        users = module(path)
        users.DataLoader = _in_order(users.DataLoader)
    actor = module("models.actor")
    actor.log_probs_from_logits = model.with_probe(actor.log_probs_from_logits)
    actor.compute_entropy = model.with_entropies(actor.compute_entropy)
    strategy = module("utils.deepspeed.deepspeed")
    strategy.init_device_mesh = made_once(strategy.init_device_mesh)
    make_config = strategy.get_train_ds_config

    def config_with_torch_adam(*args: Any, **options: Any) -> Any:
        config = make_config(*args, **options)
        if "optimizer" in config:
            config["optimizer"] = with_torch_adam(config["optimizer"])
        return config

    strategy.get_train_ds_config = config_with_torch_adam


def _in_order(loader: Any) -> Any:
    """A class of loaders that do not shuffle."""

    def in_order(*args: Any, shuffle: bool = False, **options: Any) -> Any:
        return loader(*args, shuffle=False, **options)

    return in_order
