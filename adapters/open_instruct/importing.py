"""Imports open-instruct's trainer without GPU packages and servers, and reads its options."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import types
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import choices_in, import_from, modules_of, stub, stub_missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from adapters.contract.framework import Settings

module = modules_of("open_instruct")

STUBBED: list[str] = []  # packages stubbed in this process

OF_SERVERS = (
    *("aiohttp", "beaker", "docker", "fastapi", "litellm", "mcp", "openai", "openenv", "tiktoken"),
    *("uvicorn", "vllm"),
)
OF_VERIFIERS = ("absl", "immutabledict", "langdetect", "nltk")
"""Packages of servers and of verifiers of answers, which come before a step."""

UNREACHED = (
    *("actor_manager", "ground_truth_utils", "olmo_core_callbacks", "olmo_core_hybrid"),
    "vllm_utils",
)
"""Its own modules that the trainer imports and a step does not reach."""

OF_OLMO_CORE = ("data.data_loader", "nn.hf.convert", "optim", "train.callbacks")
"""Modules that are read as attributes of their packages."""

CHOICES = {
    "nn.attention": ("AttentionBackendName", "torch te flash_2 flash_3 flash_4"),
    "nn.lm_head": ("LMLossImplementation", "default fused_linear"),
}
"""Its enumerations that open-instruct's configurations read."""


ACTORS = (("grpo_fast", "PolicyTrainerRayProcess"), ("data_loader", "DataPreparationActor"))
"""The classes, with their modules, of the trainer and of its data."""


def import_open_instruct(source: Path | None) -> None:
    """Import the trainer."""
    from adapters.engines import deepspeed
    from adapters.toolkit import cuda_on_cpu

    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # it compiles the log-softmax
    cuda_on_cpu.install()
    deepspeed.import_deepspeed()
    deepspeed.group_sequences_once()
    import_from("open_instruct", [source] if source else [])
    STUBBED.extend(stub_missing((*OF_SERVERS, *OF_VERIFIERS)))
    _stub_olmo_core()
    stub([f"open_instruct.{name}" for name in UNREACHED])
    module("grpo_fast").torch = OnCpu("torch")


def _stub_olmo_core() -> None:
    """Provide what open-instruct reads of OLMo-core while it is imported."""
    stub(["olmo_core"])
    STUBBED.append("olmo_core")
    for name in OF_OLMO_CORE:
        importlib.import_module(f"olmo_core.{name}")
    for path, (name, choices) in CHOICES.items():
        home: Any = importlib.import_module(f"olmo_core.{path}")
        setattr(home, name, Enum(name, choices))


class OnCpu(types.ModuleType):
    """torch, in the trainer alone: ``torch.device(0)`` fails on a machine without a GPU."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def device(name: Any) -> torch.device:
        """The device of a rank."""
        import torch

        return torch.device("cpu" if isinstance(name, int) else name)


def actor_class(home: str, name: str) -> Any:
    """A class of open-instruct's that Ray would start a process of."""
    return getattr(module(home), name).__ray_metadata__.modified_class


def config_classes() -> tuple[Any, Any]:
    """The dataclasses of the trainer's options, and of those of its data."""
    home = module("grpo_utils")
    kind = getattr(home, "GRPOExperimentConfig", None) or home.ExperimentConfig  # before April 2026
    return kind, module("data_loader").StreamingDataLoaderConfig


def of_class(kind: Any, settings: Settings) -> dict[str, Any]:
    """The settings that are fields of a dataclass."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in settings.items() if name in names}


def offers(settings: Settings) -> bool:
    """Whether the configurations of this version have these options, with these choices."""
    names, choices = {*_defaults()}, _choices()
    return settings.keys() <= names and all(
        str(value) in choices.get(name, {str(value)}) for name, value in settings.items()
    )


def option_names() -> Iterator[str]:
    """Yields the options that the code of a step and of its data reads, and choices."""
    trainer, data = (actor_class(*path) for path in ACTORS)
    code = (
        module("grpo_utils"),
        trainer.from_pretrained,
        trainer.step,
        data._data_preparation_loop,
    )
    read = set(re.findall(r"(?:args|config)\.(\w+)", "".join(map(inspect.getsource, code))))
    yield from read & {*_defaults()}
    for name, choices in _choices().items():
        yield from (f"{name}={choice}" for choice in choices)


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks it."""
    return _defaults().get(name)


def _defaults() -> dict[str, object]:
    return {one.name: one.default for kind in config_classes() for one in fields(kind)}


def _choices() -> dict[str, set[str]]:
    """The texts that options may have which the trainer compares with texts."""
    loop = actor_class(*ACTORS[1])._data_preparation_loop
    normalisation = "advantage_normalization_type"
    return {
        "loss_fn": {str(one) for one in module("grpo_utils").GRPOLossType},
        normalisation: choices_in(loop, normalisation),
    }
