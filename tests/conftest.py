"""Profiles of hypothesis, without deadlines, and markers of frameworks and of slow tests."""

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from hypothesis import settings

from adapters.frameworks import LISTED

# Set before torch is imported: workers with several threads each would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]

settings.register_profile("ordinary", deadline=None, max_examples=50)
settings.register_profile("full", deadline=None)
settings.load_profile("ordinary")


def pytest_configure(config: pytest.Config) -> None:
    """Add a marker for each framework."""
    for one in LISTED.values():
        config.addinivalue_line("markers", f"{one.name}: drives {one.title}'s real code")


@pytest.fixture
def forked_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read recipes in processes forked from a warm one, instead of cold ones."""
    from tests import command

    def executor(workers: int, **given: Any) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, **given | {"mp_context": command.warm_context()})

    monkeypatch.setattr("conformance.recipes.running.ProcessPoolExecutor", executor)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the fork server of a worker of pytest-xdist with all that its tests will import.

    A process has only one fork server. Otherwise the first test that starts ranks would start it
    with its own adapter in memory, and all other runs and ranks of this worker would have to import
    torch and frameworks again.
    """
    if hasattr(session.config, "workerinput"):
        from tests import command  # imports torch, which the controller does not need

        command.warm_context()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt all imported objects from garbage collection, which then looks only at tests' objects.

    Runs of pytest within tests, and in forks, collect garbage several times.
    """
    gc.freeze()


LEFT_OUT = {
    "soak": "takes many minutes; give -m soak",
    "thorough": "tries what a quicker test tries in part; give -m thorough",
    "processes": "starts processes and waits; give -m processes",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests, unless -m chooses the tests to run."""
    if config.getoption("markexpr"):
        return
    for item in items:
        for marker in filter(item.get_closest_marker, LEFT_OUT):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT[marker]))
