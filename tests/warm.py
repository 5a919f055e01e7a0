"""Imported by the fork server of tests, so that runs start with all that they need in memory."""

from importlib.metadata import entry_points

import tests.broken
import tests.broken_rarely
import tests.faulty  # noqa: F401

for plugin in entry_points(group="pytest11"):
    plugin.load()
