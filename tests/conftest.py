"""Fixtures that pytest itself provides for tests of plugins; no property test fails for its time."""

from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
