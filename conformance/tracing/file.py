"""Traces as files, so that suspected lines can be found on a machine without the framework.

A file holds recorded operations, but no suspected lines, as these depend on rules that may change.
``docs/trace-a-finding.md`` describes the format.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from adapters.contract import Job, Layout
from adapters.contract.job import Column
from adapters.contract.objective import Metric
from conformance.expected.step_context import StepContext
from conformance.findings.errors import NotTracedError
from conformance.findings.files import put
from conformance.findings.finding import FrozenModel, first_problem
from conformance.findings.sanitize import sanitize
from conformance.findings.trace import RankTrace
from conformance.tracing.rewards import TracedAdvantage
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from reference.aggregation import Aggregation
from reference.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA: Literal["rl-loss-conformance/trace/3"] = "rl-loss-conformance/trace/3"

SUFFIX = ".json.gz"


class _Array:
    """A type for pydantic: a numpy array that is read and written as a list of numbers."""

    def __class_getitem__(cls, kind: Any) -> Any:
        of_list = BeforeValidator(lambda held: np.array(held, kind))
        return Annotated[Any, of_list, PlainSerializer(lambda held: held.tolist())]


class TraceFile(FrozenModel):
    """A finding with its traced job."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    schema_: Literal["rl-loss-conformance/trace/3"] = Field(default=SCHEMA, alias="schema")
    finding: str
    package: str | None
    """The framework's package, whose lines are suspected before those of its engine."""

    sources: dict[str, str]
    """A checksum of each source file that the trace has a line of."""

    job: TracedAdvantage | TracedJob = Field(union_mode="left_to_right")


TraceFile.model_rebuild(
    _types_namespace={
        **{one.__name__: one for one in (Aggregation, Column, Job, Layout, Metric)},
        **{one.__name__: one for one in (RankTrace, Step, StepContext)},
        **{one.__name__: one for one in (TracedAdvantage, TracedJob)},
        "NDArray": _Array,
    }
)


def write(trace: Trace, folder: Path) -> Path:
    """Write a trace to a folder, and return the path of its file.

    Source files are named relative to the folder that they are imported from.
    """
    named = {file: sanitize(file, trace.source) for file in _files(trace.job)}
    held = TraceFile(
        finding=trace.finding,
        package=trace.package,
        sources={name: _checksum(Path(file)) for file, name in sorted(named.items())},
        job=trace.job,
    )
    path = folder / f"{trace.finding.replace('/', '__')}{SUFFIX}"
    text = held.model_dump_json(by_alias=True, context=named)
    put(gzip.compress(text.encode(), mtime=0), path)
    return path


def read(path: Path, source: Path | None) -> Trace:
    """The trace in a file, with the lines that the current rules suspect.

    ``source`` is the folder that the framework is imported from, if it is not installed.

    Raises:
        NotTracedError: the file is not a trace, or its source lines cannot be read.
    """
    try:
        text = gzip.decompress(path.read_bytes())
        sources = _Sources.model_validate_json(text).sources
        places = {name: _found(name, source) for name in sources}
        held = TraceFile.model_validate_json(text, context=places)
    except (OSError, EOFError) as error:
        raise NotTracedError(f"{path} is no trace: {error}") from error
    except ValidationError as error:
        raise NotTracedError(f"{path} is no trace: {': '.join(first_problem(error))}") from error
    _require_same(path, sources, places)
    return Trace.of(held.finding, held.job, held.package, source)


class _Sources(FrozenModel):
    """The part of a trace file that is read first, to find the paths of source files."""

    model_config = ConfigDict(extra="ignore")

    sources: dict[str, str]


def _require_same(path: Path, sources: Mapping[str, str], places: Mapping[str, str]) -> None:
    """Raise an error if a trace's source files differ from the files on this machine."""
    others = [name for name, one in sources.items() if _checksum(Path(places[name])) != one]
    if others:
        more = f" and {len(others) - 1} other files" if len(others) > 1 else ""
        raise NotTracedError(
            f"{path} is of another {others[0]}{more} than is found here, so that its lines cannot"
            " be read",
            "give the folder that the same version is imported from with --source",
        )


def _found(name: str, source: Path | None) -> str:
    """The path of a source file in the import folders; its name if it is not found."""
    folders = [*([] if source is None else [source]), *map(Path, filter(None, sys.path))]
    places = (folder / name for folder in folders)
    return str(next((place for place in places if place.is_file()), name))


def _checksum(file: Path) -> str:
    """The checksum of a file; empty if the code was generated at run time and has no file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def _files(job: TracedJob) -> frozenset[str]:
    """The source files of all lines in a job's traces."""
    return frozenset(line for trace in job.traces for line in _of_rank(trace))


def _of_rank(trace: RankTrace) -> Iterator[str]:
    """Yield the source files of all lines in one rank's trace."""
    groups = [one.collective.made_by for one in trace.operations if one.collective is not None]
    asked = [one.stack for one in trace.operations]
    for lines in (*asked, *groups, *trace.cuts.values()):
        yield from (line.file for line in lines)
