"""Keeps frameworks that are driven in one test process apart."""

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest

OF_FRAMEWORKS = {"areal", "nemo_rl", "openrlhf", "prime_rl", "roll", "trl", "verl"}
"""Markers of modules whose ranks have a framework in memory."""


@pytest.fixture(autouse=True, scope="module")
def fork_server_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """A framework's ranks are not forked from a process that has another one's stubs."""
    is_of_one = any(mark.name in OF_FRAMEWORKS for mark in request.node.iter_markers())
    if is_of_one:
        _stop()
    yield
    if is_of_one:
        _stop()


@pytest.fixture
def other_release() -> Iterator[None]:
    """The test's ranks and those of later tests are not forked from the same process."""
    _stop()
    yield
    _stop()


def _stop() -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # the types lack it
