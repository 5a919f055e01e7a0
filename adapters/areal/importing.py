"""Imports AReaL's trainer on a machine without its servers, and puts the probe into it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, provide, stub, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = ("aiofiles", "flask", "openai", "swanlab", "tensorboardX", "trackio", "uvloop", "wandb")
"""Packages that serve rollouts, or that follow a run."""

OF_AGENTS = "areal.experimental.openai"
"""AReaL's client and proxy of agents, whose annotations need openai."""

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
