"""What a report says before its findings."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from adapters.contract.conventions import sources
from conformance.findings.report import Environment, Header, Provenance

if TYPE_CHECKING:
    from adapters.contract import Adapter, Description
    from conformance.ranks.hardware import Hardware
    from conformance.runs.settings import Settings


def header(settings: Settings, description: Description) -> Header:
    """The header of a run's report."""
    adapter, source = settings.adapter, settings.source
    return Header(
        adapter=adapter.name,
        adapter_class=settings.adapter_class,
        engine=adapter.engine,
        source=Provenance(**{name: getattr(source, name) for name in Provenance.model_fields}),
        environment=_environment(adapter, description, settings.hardware),
        conventions=description.conventions,
        documented=sources(description.declared),
        departures=list(description.departures),
        versions=adapter.versions,
        request=settings.plan.request,
    )


def _environment(adapter: Adapter, description: Description, hardware: Hardware) -> Environment:
    """Versions and machine kind, without a name of the machine, its user or its folders."""
    versions = {name: _version(name) for name in adapter.dependencies}
    return Environment(
        python=platform.python_version(),
        torch=version("torch"),
        backend=hardware.backend,
        device=hardware.device,
        dtype=hardware.dtype,
        platform=f"{platform.system()} {platform.machine()}",
        dependencies={name: found for name, found in versions.items() if found},
        stubs=list(description.stubs),
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
