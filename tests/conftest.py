"""Fixtures that pytest itself provides for tests of plugins."""

pytest_plugins = ["pytester"]
