"""Ranks that a module's tests share, with a version of a framework loaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from adapters.contract import Adapter, Job
from conformance.ranks.pool import Ran, RankPool
from conformance.sources.source import WheelError, resolve
from tests import command

NEEDS_CLONES = pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
)


def pool_of(adapter: type[Adapter], size: int, version: str = "") -> Any:
    """A fixture of ranks that have loaded the `version_of` a framework."""

    @pytest.fixture(scope="module")
    def pool() -> Iterator[RankPool]:
        with RankPool(made := adapter(), version_of(made, version), size) as ranks:
            yield ranks

    return pool


def trained(pool: RankPool, job: Job) -> Ran:
    """The outcome of a job that ranks must run to its end."""
    outcome = pool.run(job)
    assert isinstance(outcome, Ran), outcome
    return outcome


def trained_alone(adapter: Adapter, job: Job, version: str = "") -> Ran:
    """The outcome of a job on ranks that are started only for this job."""
    with RankPool(adapter, version_of(adapter, version), job.layout.world_size) as pool:
        return trained(pool, job)


def version_of(adapter: Adapter, version: str) -> Path | None:
    """The folder of a release (``pypi:VERSION``) or a commit; None for the installed version."""
    if version.startswith("pypi:"):
        return released(adapter, version)
    return resolve(adapter, f"{clone(adapter.name)}@{version}").path if version else None


def clone(framework: str) -> Path:
    """The folder of a framework's clone; the test is skipped if there are no clones."""
    if command.SOURCES not in os.environ:
        pytest.skip(f"{command.SOURCES} names no folder of clones")
    return Path(os.environ[command.SOURCES], framework)


def released(adapter: Adapter, text: str) -> Path:
    """The folder of a release; the test is skipped if the release cannot be fetched."""
    try:
        path = resolve(adapter, text).path
    except WheelError as error:
        pytest.skip(str(error))
    assert path is not None
    return path


@contextmanager
def apart() -> Iterator[None]:
    """Use another fork server in this block; ranks of the previous server stay alive."""
    server = forkserver._forkserver  # type: ignore[attr-defined] # the types lack it
    before = dict(vars(server))
    vars(server).update(_forkserver_address=None, _forkserver_alive_fd=None, _forkserver_pid=None)
    try:
        yield
    finally:
        server._stop()
        vars(server).update(before)
