"""Imports prime-rl's trainer on a machine without its GPU packages, and configures it."""

from __future__ import annotations

import importlib
import math
import sys
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from adapters.contract.framework import nested
from adapters.toolkit import imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adapters.contract.framework import Settings

module = imports.modules_of("prime_rl")

CONFIGS = "configs.trainer"

ROOTS = ("src", "packages/prime-rl-configs/src")
"""Folders of the repository from which the trainer and the configurations are imported."""


def import_prime_rl(source: Path | None) -> None:
    """Import the trainer, from the folders of a checkout if given."""
    import torch

    _prepare()
    imports.import_from("prime_rl", [source / root for root in ROOTS] if source else [])
    module("trainer.rl.train")
    if not torch.cuda.is_available():
        module("trainer.parallel_dims").device_type = "cpu"


def transport(name: str) -> Any:
    """A module of the transport of rollouts; these modules were moved in August 2026."""
    return imports.found(f"prime_rl.transports.rollouts.{name}") or module(f"transport.{name}")


def has_streams() -> bool:
    """Whether samples have per-token advantages and weights, as since July 2026."""
    return "advantages" in transport("types").TrainingSample.__struct_fields__


SCORED = ("grpo", "max_rl")
"""Algorithms whose computation of advantages is checked."""


def algorithms() -> Any:
    """The orchestrator's classes of algorithms by type; empty in versions without such classes."""
    return imports.found("prime_rl.orchestrator.algo:ALGORITHM_CLASSES") or {}


def advantages_config(kind: str) -> Any:
    """The configuration of an algorithm, by type, with default values.

    Before June 27, 2026, only `grpo` had a configuration, under another name.
    """
    from pydantic import TypeAdapter

    if not algorithms():
        return module("configs.orchestrator").DefaultAdvantageConfig()
    configs = module("configs.algorithm")
    if hasattr(configs, "AlgoConfig"):
        return TypeAdapter(configs.AlgoConfig).validate_python({"type": kind})
    return configs.AlgorithmConfig(advantage={"type": kind})


def configured(settings: Settings) -> Any:
    """The trainer's validated configuration, without options of the orchestrator.

    Raises `ValidationError` for an option or a value that this version lacks.
    """
    trainer = {name: one for name, one in settings.items() if not name.startswith("orchestrator.")}
    of_trainer, kind = nested({"optim.max_norm": _no_clipping(), **trainer}), module(CONFIGS)
    of_trainer["model"] = _supported(kind.ModelConfig, of_trainer["model"])
    return kind.TrainerConfig(**_supported(kind.TrainerConfig, of_trainer))


def offers(settings: Settings) -> bool:
    """Whether this version has these options and values."""
    from pydantic import ValidationError

    if (kind := settings.get("orchestrator.algo.type")) is not None:
        return kind in (algorithms() or ("grpo",)) if kind in SCORED else has_streams()
    try:
        module(CONFIGS).TrainerConfig(**nested(settings))
    except ValidationError:
        return False
    return True


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    return imports.member(module(CONFIGS).TrainerConfig(), name)


def option_names() -> Iterator[str]:
    """Yields the options of all losses, and their choices."""
    for name, field in module(CONFIGS).TrainerConfig.model_fields.items():
        if name.startswith("loss"):
            yield from _section_options(name, field.annotation)


def _section_options(section: str, kind: Any) -> Iterator[str]:
    """Yields the options of a section, whose configuration may be one of several classes."""
    for option, field in getattr(kind, "model_fields", {}).items():
        yield f"{section}.{option}"
        yield from (f"{section}.{option}={one}" for one in imports.choices_of(field.annotation))
    for one in get_args(kind):
        yield from _section_options(section, one)


def _no_clipping() -> float | None:
    """The value that turns off gradient clipping: infinity before April 2026, None since then."""
    largest = module(CONFIGS).AdamWConfig.model_fields["max_norm"]
    return None if type(None) in get_args(largest.annotation) else math.inf


def _supported(kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings whose options a class of configurations has."""
    return {name: value for name, value in settings.items() if name in kind.model_fields}


@cache
def _prepare() -> None:
    """Stub packages that no training step enters, and let CUDA code run on the CPU."""
    from adapters.toolkit import cuda_on_cpu, worlds

    cuda_on_cpu.install()
    sys.modules.setdefault("tomli", tomllib)  # tomllib is tomli in the standard library
    worlds.sum_gradients_of_all_gather()
    imports.stub_imports("adapters.prime_rl")
    # versions since June 2026 use these names as type variables of generic classes
    if "verifiers" in imports.STUBBED:
        task: Any = importlib.import_module("verifiers.v1.task")
        task.DataT, task.TaskT = TypeVar("DataT"), TypeVar("TaskT")
