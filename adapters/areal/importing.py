"""Imports AReaL's trainer on a machine without its servers, with the probe, and configures it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import fields
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from adapters.areal.framework import AREAL
from adapters.contract.framework import nested
from adapters.toolkit.imports import import_from, provide, stub, stub_missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adapters.contract.framework import Settings

SERVICES = ("aiofiles", "flask", "openai", "swanlab", "tensorboardX", "trackio", "uvloop", "wandb")
"""Packages that serve rollouts, or that follow a run."""

OF_AGENTS = "areal.experimental.openai"
"""AReaL's client and proxy of agents, whose annotations need openai."""

SECTIONS = {"rejection_sampling.": "RejectionSamplingConfig", "reward_norm.": "NormConfig"}
"""Sections of an actor's options, each with the class of its configuration."""

STUBBED: list[str] = []  # what `import_areal` stubbed in this process


def import_areal(source: Path | None, engine: str) -> None:
    """Import AReaL's trainers of an engine's module, from the folder of a release if given."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    _prepare()
    import_from("areal", [source] if source else [])
    _add_the_seam(engine)


def module(path: str) -> Any:
    """Import a module of AReaL by its path below the package."""
    return importlib.import_module(f"areal.{path}")


def configured(kind: str, settings: Settings) -> Any:
    """AReaL's configuration of a kind, such as ``PPOActorConfig``, as a user's file is read.

    Raises `OmegaConfBaseException` for an option that this version lacks.
    """
    from omegaconf import OmegaConf

    return OmegaConf.to_object(OmegaConf.merge(_schema(kind), nested(settings)))


def offers(settings: Settings) -> bool:
    """Whether this version's actor has these options and values."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = configured("PPOActorConfig", {**AREAL.always, "backend": "fsdp:d1", **settings})
    except OmegaConfBaseException:
        return False
    return all(_is_choice(config, name) for name in settings)


def option_names() -> Iterator[str]:
    """Yields the options of an actor, and of their sections, that not every engine has.

    Those that have choices come with each of them too.
    """
    configs = module("api.cli_args")
    of_engines = {one.name for one in fields(configs.TrainEngineConfig)}
    sections = {section: getattr(configs, kind, None) for section, kind in SECTIONS.items()}
    for section, kind in {"": configs.PPOActorConfig, **sections}.items():
        for one in fields(kind) if kind else ():
            name = f"{section}{one.name}"
            if name not in of_engines and f"{name}." not in SECTIONS:
                yield name
                choices = one.metadata.get("choices") or ()
                yield from (f"{name}={choice}" for choice in choices)


def _is_choice(config: Any, name: str) -> bool:
    """Whether an option's value is one of its choices, if it has any."""
    *sections, last = name.split(".")
    section = reduce(getattr, sections, config)
    [choices] = [one.metadata.get("choices") for one in fields(section) if one.name == last]
    return choices is None or getattr(section, last) in choices


@cache
def _schema(kind: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(getattr(module("api.cli_args"), kind))


@cache
def _prepare() -> None:
    """Stub what no training step of ours enters."""
    from adapters.toolkit import worlds

    worlds.sum_gradients_of_all_gather()
    stub([OF_AGENTS])
    STUBBED.extend([*stub_missing(SERVICES), OF_AGENTS])
    if importlib.util.find_spec("numba") is None:
        provide("numba", njit=lambda function: function)
        STUBBED.append("numba")


@cache
def _add_the_seam(path: str) -> None:
    """Add the probe where an engine computes log-probabilities, once in a process."""
    from adapters.areal.model import with_probe

    engine = module(path)
    engine.gather_logprobs_entropy = with_probe(engine.gather_logprobs_entropy)
