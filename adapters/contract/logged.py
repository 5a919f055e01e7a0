"""All numbers that a framework logs in a job, by its own names, whether or not a check knows them.

Whatever reads metrics off a log notes the whole log here; adapters have nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Logged = dict[str, tuple[float | None, ...]]
"""The numbers of each log by name, None where a log lacks one."""


class LogRecorder:
    """Keeps the numbers of the logs of one job."""

    def __init__(self) -> None:
        self._noted: Logged = {}

    def note(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Keep the numbers of logs; names that are noted already keep theirs."""
        found = [{name: number(value) for name, value in log.items()} for log in logs]
        names = dict.fromkeys(name for log in found for name in log)
        for name in names:
            numbers = tuple(log.get(name) for log in found)
            if name not in self._noted and any(one is not None for one in numbers):
                self._noted[str(name)] = numbers

    def drain(self) -> Logged:
        """Return what was noted since the last call."""
        noted, self._noted = self._noted, {}
        return noted


def number(value: object) -> float | None:
    """A logged value as a number, None if it is no number."""
    if isinstance(value, str):
        return None
    try:
        return float(value)  # type: ignore[arg-type] # that is the question
    except (TypeError, ValueError, RuntimeError):
        return None


LOGGED = LogRecorder()
