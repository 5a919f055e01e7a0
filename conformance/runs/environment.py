"""What a result may depend on besides the framework's code."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from conformance.findings.report import Environment

if TYPE_CHECKING:
    from adapters.contract import Adapter, Description
    from conformance.ranks.hardware import Hardware


def environment(adapter: Adapter, description: Description, hardware: Hardware) -> Environment:
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
