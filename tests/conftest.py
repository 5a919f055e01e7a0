"""Fixtures that pytest itself provides for tests of plugins. No property test has a deadline."""

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes many minutes, unless it is asked for."""
    if "soak" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="takes many minutes; give -m soak"))
