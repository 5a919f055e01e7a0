"""Tables of options and departures, in a file `tables.toml` beside a framework's record."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from adapters.contract.description import Departure, DepartureKind
from adapters.contract.framework import OptionRow


def read_options(package: str, table: str = "options") -> tuple[OptionRow, ...]:
    """The rows of a package's table: ``names``, what they change, and a ``note``."""
    return tuple(
        OptionRow(tuple(row.pop("names").split(", ")), **row) for row in _rows(package, table)
    )


def read_departures(package: str, table: str = "departures") -> tuple[Departure, ...]:
    """The departures of a package's table: a kind with what differs, and ``why`` that is safe."""
    return tuple(
        Departure(DepartureKind(kind), row[kind], row["why"])
        for row in _rows(package, table)
        for kind in row.keys() - {"why"}
    )


def _rows(package: str, table: str) -> list[dict[str, str]]:
    """The rows, with every text in one line."""
    return [
        {name: " ".join(text.split()) for name, text in row.items()}
        for row in _tables(package)[table]
    ]


@cache
def _tables(package: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath("tables.toml").read_text("utf-8"))
