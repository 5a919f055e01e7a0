"""Profiles of hypothesis, without deadlines, and markers of tests that run only when asked for."""

import os

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("ordinary", deadline=None)
settings.register_profile("full", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))

LEFT_OUT = {
    "soak": "takes many minutes; give -m soak",
    "processes": "starts processes and waits; give -m processes",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless it is asked for."""
    for marker, reason in LEFT_OUT.items():
        if marker not in config.getoption("markexpr"):
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))
