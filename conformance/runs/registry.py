"""Finds adapters, and loads frameworks to find out what each adapter can drive on this machine."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract import Adapter
from adapters.frameworks import LISTED
from adapters.toolkit.imports import load
from conformance.findings.errors import (
    AdapterError,
    ConformanceError,
    InvalidEngineError,
    InvalidSourceError,
)
from conformance.sources.source import Source, resolve
from reference import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adapters.contract import Description

GROUP = "rl_loss_conformance.adapters"

OUR_PACKAGES = ("adapters", "conformance", "reference")


def known() -> dict[str, EntryPoint]:
    """Every adapter by name: the entry points of distributions and the list in frameworks.toml."""
    listed = (EntryPoint(one.name, one.adapter, GROUP) for one in LISTED.values())
    found = {entry.name: entry for entry in (*entry_points(group=GROUP), *listed)}
    return dict(sorted(found.items()))


def create(name: str, engine: str | None = None) -> Adapter:
    """Create the adapter with the given name and engine, by default its first engine.

    Raises:
        AdapterError: no adapter has the name, or it cannot be imported.
        InvalidEngineError: the adapter has no such engine.
    """
    _require_our_packages()
    engines = adapter_classes(name)
    if engine is None:
        return next(iter(engines.values()))()
    if engine not in engines:
        raise InvalidEngineError(
            f"engine {engine!r} is none of {name}'s",
            did_you_mean(engine, engines, f"choose {' or '.join(engines)}"),
        )
    return engines[engine]()


def adapter_classes(name: str) -> dict[str, type[Adapter]]:
    """The adapter classes with a name, by engine, the default engine first.

    An entry point, or a name of the form ``module:Class``, refers to a class or a tuple of classes.

    Raises:
        AdapterError: no adapter has the name, or it cannot be imported.
    """
    entry = _class_in_module(name) if is_class(name) else _installed(name)
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            f"adapter {name!r} ({entry.value}) cannot be imported: {error}", _way_out(name)
        ) from error
    classes = loaded if isinstance(loaded, tuple) else (loaded,)
    if not all(isinstance(one, type) and issubclass(one, Adapter) for one in classes):
        raise AdapterError(f"adapter {name!r} ({entry.value}) is no adapters.contract.Adapter")
    for one in classes:
        _require_complete(one)
    return {one.engine: one for one in classes}


def _require_complete(adapter_class: type[Adapter]) -> None:
    """Require a class to have every method and attribute of an adapter.

    Raises:
        AdapterError: a method or an attribute is missing.
    """
    missing = [f"{name}()" for name in sorted(adapter_class.__abstractmethods__)]
    missing += [] if hasattr(adapter_class, "name") else ["name"]
    if missing:
        raise AdapterError(
            f"class {adapter_class.__qualname__} of {adapter_class.__module__} lacks"
            f" {', '.join(missing)}",
            "docs/adapters.md shows a complete adapter",
        )


def is_class(name: str) -> bool:
    """Whether a name has the form ``module:Class``, and does not name an entry point."""
    return ":" in name


def short_name(name: str) -> str:
    """The name of an adapter for file names: the class's own name for ``module:Class``.

    Raises:
        AdapterError: no adapter has the name, or it cannot be imported.
    """
    return next(iter(adapter_classes(name).values())).name if is_class(name) else name


def _class_in_module(name: str) -> EntryPoint:
    """An entry point for a class that no distribution declares.

    The module may be in the current folder, which is searched last.

    Raises:
        AdapterError: the name is not of the form ``module:Class``.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise AdapterError(
            f"adapter {name!r} is not of the form module:Class",
            "write my_package.my_module:MyAdapter",
        )
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    return EntryPoint(name=name, value=name, group=GROUP)


def _installed(name: str) -> EntryPoint:
    entry = known().get(name)
    if entry is None:
        raise AdapterError(
            f"adapter {name!r} is unknown",
            did_you_mean(
                name,
                known(),
                f"installed are {', '.join(known()) or 'none'}."
                f" Others are found through the entry point group {GROUP}, or as module:Class",
            ),
        )
    return entry


def _way_out(name: str) -> str:
    if is_class(name):
        return "name a module in the current folder or an installed one, and a class in it"
    return "reinstall the distribution that declares it"


def _require_our_packages() -> None:
    """Require that our import names, such as `adapters`, are not another distribution's modules."""
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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One engine of one adapter; ``problem`` says why it has no source or no description."""

    adapter: Adapter
    is_default: bool
    source: Source | None = None
    description: Description | None = None
    problem: str | None = None


def inventory(sources: Mapping[str, str], chosen: Sequence[str] = ()) -> Iterator[Entry]:
    """An entry for every engine of the chosen adapters, by default of all adapters.

    ``sources`` has a source by adapter name. Each framework is loaded in a process of its own,
    since frameworks patch the modules of their process.

    Raises:
        InvalidSourceError: a source is given for an adapter that is not installed.
        AdapterError: an adapter cannot be imported.
    """
    names = [_installed(name).name for name in chosen] or list(known())
    unknown = sorted(set(sources) - set(names))
    if unknown:
        raise InvalidSourceError(
            f"source {sources[unknown[0]]!r} is for adapter {unknown[0]!r}, which is not installed",
            f"choose {', '.join(names)}",
        )
    engines = [
        (adapter_class(), sources.get(name), number == 0)
        for name in names
        for number, adapter_class in enumerate(adapter_classes(name).values())
    ]
    # The server starts before any thread and imports torch, the slowest import of most frameworks.
    multiprocessing.set_forkserver_preload(["conformance.ranks.worker"])
    forkserver.ensure_running()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(_entry, *zip(*engines, strict=True))


def describe(adapter: Adapter, source: str) -> Description:
    """The description of a version of a framework, found by loading it in a process of its own.

    Raises:
        SourceError: there is no such version.
        AdapterError: the framework cannot be loaded.
    """
    multiprocessing.set_forkserver_preload(["conformance.ranks.worker"])
    description, problem = _describe(adapter, resolve(adapter, source))
    if description is None:
        raise AdapterError(f"{adapter.name} {problem}")
    return description


def _entry(adapter: Adapter, text: str | None, is_default: bool) -> Entry:
    try:
        source = resolve(adapter, text)
    except ConformanceError as error:
        return Entry(adapter=adapter, is_default=is_default, problem=str(error))
    description, problem = _describe(adapter, source)
    return Entry(
        adapter=adapter,
        is_default=is_default,
        source=source,
        description=description,
        problem=problem,
    )


def _describe(adapter: Adapter, source: Source) -> tuple[Description | None, str | None]:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context, initializer=keep_quiet) as executor:
        try:
            return executor.submit(load, adapter, source.path).result(), None
        except Exception as error:  # a framework may raise anything or exit
            return None, f"cannot be loaded: {type(error).__name__}: {error}"


def keep_quiet() -> None:
    """Discard the output of this process, since frameworks print while they are imported."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
