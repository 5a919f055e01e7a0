"""The frameworks that have an adapter: `frameworks.toml`, read with the standard library alone.

``python -m adapters.frameworks`` prints the environments as the workflow `watch.yml` reads them.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE = "clone"
"""The source of frameworks that must be cloned, because no package index has them."""


@dataclass(frozen=True, kw_only=True)
class ListedFramework:
    """A framework, listed by its name in ``--adapter=NAME``.

    Attributes:
        repository: owner and name on GitHub.
        adapter: the adapter class, or a tuple of its engines' classes, as ``module:NAME``.
        needs: a package whose installation shows that the framework can be run.
        environment: the environment in which the framework is run.
        extras: the extras of pyproject.toml that the environment needs.
        source: the value of ``--source`` in tests: empty if an extra installs the framework,
            ``pypi:VERSION`` if it is fetched without its dependencies, or `CLONE`.
        plans: engines whose quick plans are run in the environment.
        page: the framework's page below `docs`.
        recipes: the kinds of recipes that the adapter reads, in Markdown.
        examples: the place of the framework's example recipes.
    """

    name: str
    title: str
    repository: str
    adapter: str
    needs: str
    environment: str
    extras: tuple[str, ...] = ()
    source: str = ""
    plans: tuple[str, ...] = ()
    page: str = ""
    recipes: str = ""
    examples: str = ""


@dataclass(frozen=True, kw_only=True)
class VirtualEnvironment:
    """A virtual environment that holds the packages of several frameworks.

    ``packages`` are installed after the extras, without their dependencies. If the environment is
    ``constrained``, constraints.txt pins the versions of all other packages.
    """

    name: str
    constrained: bool = True
    packages: tuple[str, ...] = ()

    @property
    def frameworks(self) -> list[ListedFramework]:
        """The frameworks of this environment."""
        return [one for one in LISTED.values() if one.environment == self.name]

    @property
    def extras(self) -> list[str]:
        """The extras of this environment's frameworks, each once."""
        return sorted({extra for one in self.frameworks for extra in one.extras})


def _entries(kind: str) -> dict[str, dict[str, Any]]:
    """The tables of one kind by name, with lists turned into tuples."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[kind]
    return {
        name: {"name": name}
        | {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        for name, table in tables.items()
    }


LISTED = {name: ListedFramework(**entry) for name, entry in _entries("framework").items()}

ENVIRONMENTS = {
    name: VirtualEnvironment(**entry) for name, entry in _entries("environment").items()
}


def watched() -> list[dict[str, str]]:
    """Returns a job of `watch.yml` for each environment."""
    return [
        {
            "extras": ",".join(one.extras),
            "constraints": "constraints.txt" if one.constrained else "",
            "packages": " ".join(one.packages),
            "frameworks": " ".join(f"{each.name}={each.repository}" for each in one.frameworks),
        }
        for one in ENVIRONMENTS.values()
    ]


if __name__ == "__main__":
    print(f"matrix={json.dumps({'include': watched()})}")
