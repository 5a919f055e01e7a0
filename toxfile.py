"""Adds to tox.ini an environment for each of adapters/frameworks.toml.

It has the tests of its frameworks' adapters and their quick plans, which write to reports/latest.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tox.config.loader.memory import MemoryLoader
from tox.plugin import impl

sys.path.insert(0, str(Path(__file__).parent))

from adapters.frameworks import ENVIRONMENTS, VirtualEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tox.config.sets import ConfigSet
    from tox.session.state import State


@impl
def tox_extend_envs() -> tuple[str, ...]:
    """The names of the environments."""
    return tuple(ENVIRONMENTS)


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Configure them."""
    for one in ENVIRONMENTS.values():
        state.conf.memory_seed_loaders[one.name].append(MemoryLoader(**_settings(one)))


def _settings(one: VirtualEnvironment) -> dict[str, object]:
    """Everything that differs from tox.ini's section testenv."""
    titles = ", ".join(each.title for each in one.frameworks)
    settings: dict[str, object] = {
        "description": f"tests and quick plans of the adapters of {titles}",
        "extras": [*one.extras, "dev"],
        "commands": [*_commands(one)],
    }
    if one.packages:
        settings["commands_pre"] = [f"python -m pip install --no-deps {' '.join(one.packages)}"]
    if not one.constrained:
        settings["constrain_package_deps"] = False
        settings["install_command"] = "python -m pip install {opts} {packages}"
    return settings


def _commands(one: VirtualEnvironment) -> Iterator[str]:
    """Yield the tests, and a quick plan for each engine that has one here."""
    markers = " or ".join(each.name for each in one.frameworks)
    yield f'pytest tests -m "({markers}) and not soak"'
    for each in one.frameworks:
        source = [f"--source={each.source}"] if each.source else []
        for engine in each.plans:
            yield " ".join(
                [
                    "pytest",
                    f"--adapter={each.name}",
                    f"--engine={engine}",
                    *source,
                    "--expect=known",
                ]
            )
