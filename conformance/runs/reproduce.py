"""The command that makes one finding again, and nothing else."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.findings.finding_id import GENERATED
from conformance.findings.verdict import Check
from conformance.ranks.hardware import MAX_RANKS, ON_CPU
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.finding import Finding
    from conformance.findings.report import Header, Provenance

PLACEHOLDERS = {
    "CLONE": "a clone of the framework's repository",
    "CHECKOUT": "a checkout of the framework",
    "FILE": "the step that the user gave",
}
"""Placeholders in commands for paths, which reports do not name."""


def command(header: Header, finding: Finding) -> str:
    """A line for the shell, which may have some of `PLACEHOLDERS`."""
    return shlex.join(["pytest", *_options(header, finding)])


def _options(header: Header, finding: Finding) -> Iterator[str]:
    yield f"--adapter={header.adapter_class or header.adapter}"
    yield f"--engine={header.engine}"
    yield from _source(header.source)
    if finding.mode is Mode.CONSTANT and header.request.divisor is not None:
        yield f"--modes={Mode.CONSTANT}:{header.request.divisor!r}"
    if header.environment.device != ON_CPU.device:
        yield f"--device={header.environment.device}"
        yield f"--backend={header.environment.backend}"
    if header.environment.dtype != ON_CPU.dtype:
        yield f"--dtype={header.environment.dtype}"
    if finding.depth is not Depth.STEP:
        yield f"--depth={finding.depth}"
    yield f"--layout={finding.layout}"
    if finding.layout.world_size > MAX_RANKS:
        yield f"--max-ranks={finding.layout.world_size}"
    if finding.case == GENERATED and finding.check is Check.WEIGHTS:
        yield f"--examples={header.request.examples}"
        yield f"--hypothesis-seed={header.request.seed}"
    if header.request.case is not None:
        yield "--case-file=FILE"
    yield "-k"
    yield f"[{finding.id}]"


def _source(source: Provenance) -> Iterator[str]:
    if source.kind == "git":
        yield f"--source=CLONE@{source.revision}"
    elif source.kind == "pypi":
        yield f"--source=pypi:{source.version}"
    elif source.kind == "checkout":
        yield "--source=CHECKOUT"
