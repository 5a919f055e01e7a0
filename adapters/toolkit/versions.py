"""Calls and finds functions whose signatures and places differ between versions of a framework."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from adapters.contract import CodeLocation, code_location

Candidates = Mapping[CodeLocation, tuple[tuple[Any, str], ...]]
"""For each place, modules or classes with the name that a function has in them."""


def call_supported(function: Any, *args: Any, **offered: Any) -> Any:
    """Call a function with those of the keyword arguments that this version knows."""
    known = _parameters(getattr(function, "__func__", function))
    return function(*args, **{name: value for name, value in offered.items() if name in known})


def places(candidates: Candidates) -> dict[CodeLocation, str]:
    """The first candidate that this version has for each place."""
    found = {
        place: [getattr(home, name) for home, name in functions if hasattr(home, name)]
        for place, functions in candidates.items()
    }
    return {place: code_location(functions[0]) for place, functions in found.items() if functions}


@cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
