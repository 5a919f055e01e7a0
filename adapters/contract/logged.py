"""All numbers that a framework logs in a job, by their names in the log, with or without a check.

The functions that read metrics from a log note the whole log here; adapters need no code for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Logged = dict[str, tuple[float | None, ...]]
"""The numbers of all logs by name; None if a log lacks the number."""


class LogRecorder:
    """Keeps the numbers of the logs of one job."""

    def __init__(self) -> None:
        self._noted: Logged = {}

    def note(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Keep the numbers of logs; a name that is already noted keeps its numbers."""
        found = [{name: number(value) for name, value in log.items()} for log in logs]
        names = dict.fromkeys(name for log in found for name in log)
        for name in names:
            numbers = tuple(log.get(name) for log in found)
            if name not in self._noted and any(one is not None for one in numbers):
                self._noted[str(name)] = numbers

    def drain(self) -> Logged:
        """Return the numbers noted since the last call."""
        noted, self._noted = self._noted, {}
        return noted


def number(value: object) -> float | None:
    """A logged value as a number, None if it is not a number."""
    if isinstance(value, str):
        return None
    try:
        return float(value)  # type: ignore[arg-type] # logs have values of any type
    except (TypeError, ValueError, RuntimeError):
        return None


LOGGED = LogRecorder()
