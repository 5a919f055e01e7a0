"""Fixtures that pytest itself provides for tests of plugins. No property test has a deadline."""

from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
