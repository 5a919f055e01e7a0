"""Runs jobs of a framework in a process of its own, as one process holds one framework only."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.contract import Job, LogEntry
from adapters.toolkit.source import resolve
from conformance.ranks.log_process import CHILD
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from tests import command


def observe(adapter: str, source: str, jobs: Sequence[Job], engine: str = "megatron") -> list[Any]:
    """What comes of each job on a source, in one pool of ranks."""
    with tempfile.NamedTemporaryFile() as outcomes:
        assert command.fork(_observe, outcomes.name, adapter, source, engine, list(jobs)) == 0
        return list(pickle.load(outcomes))


def aggregate(
    adapter: str, source: str, logs: Sequence[Sequence[LogEntry]], *options: str
) -> list[Any]:
    """What an adapter makes of each log, or its words, by a Python started with ``options``."""
    created = registry.create(adapter, "megatron")
    cases = {str(number): tuple(log) for number, log in enumerate(logs)}
    process = subprocess.run(
        [sys.executable, *options, "-m", CHILD],
        input=pickle.dumps((created, resolve(created, source).path, cases)),
        cwd=command.ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    outcomes = pickle.loads(process.stdout)
    return [outcome.message or outcome.log for outcome in outcomes.values()]


def _observe(outcomes: str, adapter: str, source: str, engine: str, jobs: list[Job]) -> None:
    created = registry.create(adapter, engine)
    size = max(job.layout.world_size for job in jobs)
    with RankPool(created, resolve(created, source).path, size) as pool:
        Path(outcomes).write_bytes(pickle.dumps([pool.run(job) for job in jobs]))
