"""What the installed adapters can drive here, found out by loading each framework once."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.toolkit.source import Source, resolve
from conformance.findings.errors import ConformanceError, InvalidSourceError
from conformance.runs import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from adapters.contract import Adapter, Description


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One engine of one adapter. ``problem`` says why there is no source or no description."""

    adapter: Adapter
    is_default: bool
    source: Source | None = None
    description: Description | None = None
    problem: str | None = None


def inventory(sources: Mapping[str, str]) -> Iterator[Entry]:
    """An entry for every engine, in the order of adapter names; ``sources`` are by that name.

    Each framework is loaded in a process of its own, as it patches what it finds there.

    Raises:
        InvalidSourceError: a source is for no installed adapter.
        AdapterError: an adapter cannot be imported.
    """
    names = list(registry.known())
    unknown = sorted(set(sources) - set(names))
    if unknown:
        raise InvalidSourceError(
            f"source {sources[unknown[0]]!r} is for adapter {unknown[0]!r}, which is not installed",
            f"choose {', '.join(names)}",
        )
    for name in names:
        for number, adapter_class in enumerate(registry.adapter_classes(name).values()):
            yield _entry(adapter_class(), sources.get(name), is_default=number == 0)


def _entry(adapter: Adapter, text: str | None, *, is_default: bool) -> Entry:
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
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_keep_quiet) as executor:
        try:
            return executor.submit(_load, adapter, source).result(), None
        except Exception as error:  # a framework may raise anything, or end its process
            return None, f"cannot be loaded: {type(error).__name__}: {error}"


def _keep_quiet() -> None:
    """Frameworks print while they are imported."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _load(adapter: Adapter, source: Source) -> Description:
    adapter.load(source.path)
    return adapter.describe()
