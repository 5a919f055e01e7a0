"""Imports AReaL's trainer on a machine without its servers, with the probe, and configures it."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import fields
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from adapters.contract.framework import nested
from adapters.toolkit.imports import STUBBED, import_from, modules_of, provide, stub_imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adapters.contract.framework import Settings

module = modules_of("areal")

SECTIONS = {"rejection_sampling.": "RejectionSamplingConfig", "reward_norm.": "NormConfig"}
"""Sections of an actor's options, each with the class of its configuration."""


def import_areal(source: Path | None, engine: str) -> None:
    """Import AReaL, from a release's folder if given, and add the probe to an engine's module."""
    _prepare()
    import_from("areal", [source] if source else [])
    _add_the_seam(engine)


def configured(settings: Settings) -> Any:
    """AReaL's configuration of an experiment, with or without a critic, read like a user's file.

    AReaL's validation sets options that follow from other sections. Raises `OmegaConfBaseException`
    for an option that this version lacks.
    """
    from omegaconf import OmegaConf

    configs, paths = module("api.cli_args"), _paths(settings)
    if settings.get("is_critic"):  # a critic has fewer options than an actor
        known = {one.name for one in fields(configs.PPOCriticConfig)}
        of_critic = {name: one for name, one in settings.items() if name.split(".")[0] in known}
        paths |= {f"critic.{name}": one for name, one in of_critic.items()}
    read: Any = OmegaConf.merge(_schema(), nested(paths))
    sections = {name: OmegaConf.to_object(read[name]) for name in nested(paths)}
    return configs.PPOConfig(**sections)


def offers(settings: Settings) -> bool:
    """Whether this version has these options and values; functions of a job are not checked."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    paths = _paths(settings)
    values = {name: one for name, one in paths.items() if one != "" and not callable(one)}
    try:
        config = OmegaConf.merge(_schema(), nested(values))
    except OmegaConfBaseException:
        return False
    return all(_is_choice(config, name, values) for name in paths)


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    from omegaconf import OmegaConf

    [path] = _paths({name: None})
    return OmegaConf.select(_schema(), path)


def option_names() -> Iterator[str]:
    """Yields an actor's options, also those of sections but not of engines, and their choices."""
    configs = module("api.cli_args")
    of_engines = {one.name for one in fields(configs.TrainEngineConfig)}
    sections = {"": "PPOActorConfig", **SECTIONS}
    for section, kind in sections.items():
        for one in fields(getattr(configs, kind)) if hasattr(configs, kind) else ():
            name = f"{section}{one.name}"
            if name not in of_engines and f"{name}." not in SECTIONS:
                yield name
                choices = one.metadata.get("choices") or ()
                yield from (f"{name}={choice}" for choice in choices)


def _is_choice(config: Any, path: str, values: Settings) -> bool:
    """Whether an option exists and, if it has choices, allows the given value."""
    from omegaconf import OmegaConf

    *sections, last = path.split(".")
    kind: Any = OmegaConf.get_type(reduce(getattr, sections, config))
    choices = [one.metadata.get("choices") for one in fields(kind) if one.name == last]
    return bool(choices) and (not choices[0] or path not in values or values[path] in choices[0])


def _paths(settings: Settings) -> dict[str, Any]:
    """Options by their names in a user's file."""
    return {
        name if name.startswith("gconfig.") else f"actor.{name}": one
        for name, one in settings.items()
    }


@cache
def _schema() -> Any:
    from omegaconf import OmegaConf

    configs = module("api.cli_args")
    sections = {
        "actor": configs.PPOActorConfig,
        "critic": configs.PPOCriticConfig,
        "gconfig": configs.GenerationHyperparameters,
    }
    return OmegaConf.create({name: OmegaConf.structured(one) for name, one in sections.items()})


@cache
def _prepare() -> None:
    """Stub packages that no training step enters."""
    from adapters.toolkit import worlds

    worlds.sum_gradients_of_all_gather()
    stub_imports("adapters.areal")
    if importlib.util.find_spec("numba") is None:
        provide("numba", njit=lambda function: function)
        STUBBED.append("numba")


@cache
def _add_the_seam(path: str) -> None:
    """Add the probe to an engine's log-probabilities, once in a process."""
    from adapters.areal.model import add_probe

    engine = module(path)
    engine.gather_logprobs_entropy = add_probe(engine.gather_logprobs_entropy)
