"""Runs jobs of a framework in a process of its own, as a process can load only one framework."""

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.contract import Job, LogEntry
from conformance.ranks.hardware import ON_CPU
from conformance.ranks.log_process import LogRequest, Logs
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.sources.source import resolve
from tests import command


def observe(adapter: str, source: str, jobs: Sequence[Job], engine: str = "megatron") -> list[Any]:
    """The outcome of each job in one pool, with a source or, if it is empty, the installed code."""
    with tempfile.NamedTemporaryFile() as outcomes:
        assert command.fork(_observe, outcomes.name, adapter, source, engine, list(jobs)) == 0
        return list(pickle.load(outcomes))


def aggregate(
    adapter: str, source: str, logs: Sequence[Sequence[LogEntry]]
) -> list[tuple[Any, Any]]:
    """The message or else the log that each of ``logs`` gives, with asserts and without."""
    with tempfile.NamedTemporaryFile() as outcomes:
        assert command.fork(_aggregate, outcomes.name, adapter, source, list(logs)) == 0
        return list(pickle.load(outcomes))


def _aggregate(outcomes: str, adapter: str, source: str, logs: list[Sequence[LogEntry]]) -> None:
    created = registry.create(adapter, "megatron")
    cases = {str(number): tuple(log) for number, log in enumerate(logs)}
    request = LogRequest(
        adapter=created, source=resolve(created, source).path, hardware=ON_CPU, cases=cases
    )
    with Logs(request) as made:
        of_cases = [tuple(one.message or one.log for one in made.of(case)) for case in cases]
    Path(outcomes).write_bytes(pickle.dumps(of_cases))


def _observe(outcomes: str, adapter: str, source: str, engine: str, jobs: list[Job]) -> None:
    created = registry.create(adapter, engine)
    size = max(job.layout.world_size for job in jobs)
    with RankPool(created, resolve(created, source or None).path, size) as pool:
        Path(outcomes).write_bytes(pickle.dumps([pool.run(job) for job in jobs]))
