"""Imports ROLL's pipeline on a machine without GPUs, with the probe, and configures it."""

from __future__ import annotations

import importlib
import logging
from dataclasses import is_dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from adapters.contract.framework import nested
from adapters.toolkit import imports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from adapters.contract.framework import Settings

module = imports.modules_of("roll")

OF_POLICIES = ("worker_cls", "pg_variant")
"""Options of a role that a critic does not have."""

FOR_MEGATRON = "mcore_adapter/src"
"""The folder, in ROLL's repository, of the package that makes Megatron models."""

Function = tuple[str, str]
"""A function of ROLL: the path of the module that calls it, and its name in that module."""


def import_roll(source: Path | None, log_probs: Function, entropies: Function) -> None:
    """Import ROLL's pipeline and an engine, from the folder of a checkout if given.

    The probe is added to the engine's functions of logits.
    """
    _prepare()
    imports.import_from("roll", [source, source / FOR_MEGATRON] if source else [])
    # At import, ROLL's own loggers write to a file in the current folder.
    module("utils.logging").get_logger = lambda: logging.getLogger("roll")
    module("pipeline.rlvr.rlvr_pipeline")
    _let_a_cpu_do()
    _add_the_seams(log_probs, entropies)


def configured(settings: Settings) -> Any:
    """The configuration of a pipeline, as validated. A critic has the actor's training options."""
    declared = {name: value for name, value in settings.items() if not name.startswith("+")}
    sections = nested(declared)
    if settings["adv_estimator"] == "gae":
        actor = sections["actor_train"].items()
        sections["critic"] = {name: value for name, value in actor if name not in OF_POLICIES}
    config = read(sections)
    for name in settings.keys() - declared.keys():
        *roles, option = name.lstrip("+").split(".")
        setattr(reduce(getattr, roles, config), option, settings[name])
    return config


def read(sections: Mapping[str, Any]) -> Any:
    """The configuration of a pipeline from a user's file, as ROLL's own script makes it."""
    from dacite import from_dict

    return from_dict(data_class=pipeline_config(), data=sections)


def offers(settings: Settings) -> bool:
    """Whether this version's pipeline declares these options and values."""
    declared = (name for name in settings if not name.startswith("+"))
    return all(_is_choice(name, settings[name]) for name in declared)


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    *sections, last = name.lstrip("+").split(".")
    kind: Any = pipeline_config()
    for section in sections:
        kind = get_type_hints(kind).get(section)
    return getattr(kind, last, None)


def option_names() -> Iterator[str]:
    """Yields the options that only this pipeline has, and their choices; roles are left out."""
    of_all = get_type_hints(module("configs.base_config").BaseConfig)
    for name, kind in _declared(pipeline_config()):
        if name.split(".")[0] not in of_all:
            yield name
            yield from (f"{name}={choice}" for choice in imports.choices_of(kind))


def pipeline_config() -> Any:
    """The class of the RLVR pipeline's configuration."""
    return module("pipeline.rlvr.rlvr_config").RLVRConfig


def _declared(kind: type, section: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a configuration and its sections, except roles, with their types."""
    of_roles = module("configs.worker_config").WorkerConfig
    for name, hint in get_type_hints(kind).items():
        kinds: list[Any] = [one for one in (hint, *get_args(hint)) if is_dataclass(one)]
        if not kinds or get_origin(hint) is list:
            yield f"{section}{name}", hint
        elif not issubclass(kinds[0], of_roles):
            yield from _declared(kinds[0], f"{section}{name}.")


def _is_choice(name: str, value: Any) -> bool:
    """Whether an option is declared, with this value among its choices if it has any."""
    kind: Any = pipeline_config()
    for part in name.split("."):
        if not is_dataclass(kind):
            return True  # a dictionary allows any entry
        options = get_type_hints(kind)
        if part not in options:
            return False
        kind = options[part]
    return get_origin(kind) is not Literal or value in get_args(kind)


@cache
def _prepare() -> None:
    """Stub services and packages for GPUs, and add a name of an older transformers."""
    imports.stub_imports("adapters.roll")
    # Import peft before classes are renamed, because it recreates the module transformers.
    importlib.import_module("peft")
    imports.name_classes_as_before()  # required by versions before March 10, 2026
    # transformers looks for flash_attn at import, and must not find our stub.
    importlib.import_module("transformers.integrations.flash_attention")
    imports.stub_missing(["flash_attn"])


@cache
def _let_a_cpu_do() -> None:
    """Give ROLL's CPU platform the functions that its accelerator platforms have."""
    platform = module("platforms").current_platform
    nothing = ("empty_cache", "reset_max_memory_allocated", "reset_max_memory_cached")
    for name in (*nothing, "reset_peak_memory_stats"):
        setattr(platform, name, lambda *_: None)
    used = ("memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used")
    for name in (*used, "max_memory_allocated"):
        setattr(platform, name, lambda *_: 0)
    platform.apply_ulysses_patch = lambda: True
    module("distributed.scheduler.decorator").clear_memory = lambda: None


@cache
def _add_the_seams(log_probs: Function, entropies: Function) -> None:
    """Add the probe where an engine computes log-probabilities and entropies."""
    from adapters.engines.numbered import SEAM

    for (path, name), wrap in (
        (log_probs, SEAM.wrap_log_probs),
        (entropies, SEAM.wrap_entropies),
    ):
        home = module(path)
        setattr(home, name, wrap(_copy_first(getattr(home, name))))


def _copy_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of logits that gets a copy of them.

    ROLL's functions for Megatron overwrite float32 logits in place (bfloat16 logits are first
    copied to float32).
    """
    return lambda logits, *rest, **options: function(logits.clone(), *rest, **options)
