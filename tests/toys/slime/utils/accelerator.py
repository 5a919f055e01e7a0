"""Devices to choose from, once one is available."""

from collections.abc import Callable
from typing import NamedTuple


class Backend(NamedTuple):
    factory: Callable[[], str]


_REGISTRY: dict[str, Backend] = {}
_ACCELERATOR: str | None = None


def _register_builtin_backends() -> None:
    _REGISTRY["cuda"] = Backend(lambda: "cuda")


def get_accelerator() -> str:
    if _ACCELERATOR is None:
        raise RuntimeError("no accelerator is at hand")
    return _ACCELERATOR
