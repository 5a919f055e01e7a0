"""Finds adapters by the entry points that distributions declare for them."""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from adapters.contract import Adapter
from conformance.findings.errors import AdapterError, InvalidEngineError

GROUP = "rl_loss_conformance.adapters"

OUR_PACKAGES = ("adapters", "conformance", "reference")


def known() -> dict[str, EntryPoint]:
    """Every adapter that is installed, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name)}


def create(name: str, engine: str | None = None) -> Adapter:
    """Make the adapter of that name and engine, or of its first engine.

    Raises:
        AdapterError: there is none of that name, or it cannot be imported.
        InvalidEngineError: it has no such engine.
    """
    _require_our_packages()
    engines = adapter_classes(name)
    if engine is None:
        return next(iter(engines.values()))()
    if engine not in engines:
        raise InvalidEngineError(
            f"engine {engine!r} is none of {name}'s", f"choose {' or '.join(engines)}"
        )
    return engines[engine]()


def adapter_classes(name: str) -> dict[str, type[Adapter]]:
    """The adapter classes of that name by engine, the default engine first.

    An entry point names one class, or a tuple of them.

    Raises:
        AdapterError: there is none of that name, or it cannot be imported.
    """
    entry = known().get(name)
    if entry is None:
        raise AdapterError(
            f"adapter {name!r} is unknown",
            f"installed are {', '.join(known()) or 'none'}."
            f" Others are found through the entry point group {GROUP}",
        )
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            f"adapter {name!r} ({entry.value}) cannot be imported: {error}",
            "reinstall the distribution that declares it",
        ) from error
    classes = loaded if isinstance(loaded, tuple) else (loaded,)
    if not all(isinstance(one, type) and issubclass(one, Adapter) for one in classes):
        raise AdapterError(f"adapter {name!r} ({entry.value}) is no adapters.contract.Adapter")
    return {one.engine: one for one in classes}


def _require_our_packages() -> None:
    """Our import names are common words, and PyPI has an `adapters` too: say so if it won."""
    ours = Path(__file__).resolve().parents[2]
    for package in OUR_PACKAGES:
        spec = importlib.util.find_spec(package)
        found = [Path(p).resolve() for p in (spec.submodule_search_locations or [])] if spec else []
        if ours / package not in found:
            raise AdapterError(
                f"the import name {package!r} belongs to another distribution, at"
                f" {', '.join(map(str, found)) or 'nowhere'}",
                "install rl-loss-conformance into an environment without it",
            )
