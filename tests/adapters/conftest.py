"""Isolates frameworks that are driven in one test process from each other."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from adapters.frameworks import LISTED
from tests.pools import apart

OF_FRAMEWORKS = {*LISTED} - {"skyrl"}
"""The markers of test modules whose ranks load a framework that no other module's ranks may."""


@pytest.fixture(autouse=True, scope="module")
def fork_server_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each framework's ranks a fork server that has no other framework's stubs."""
    is_of_one = any(mark.name in OF_FRAMEWORKS for mark in request.node.iter_markers())
    with apart() if is_of_one else nullcontext():
        yield


@pytest.fixture
def other_release() -> Iterator[None]:
    """Use another fork server for the ranks of this test, and the previous one afterwards."""
    with apart():
        yield
