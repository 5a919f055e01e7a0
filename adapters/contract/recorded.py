"""Records of the job that this process runs: all logged numbers, and whether training has begun.

Models, and the functions that read metrics from a log, make these records; adapters need no code
for this. Numbers are recorded by their names in the log, with or without a check.
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


class Training:
    """Counts the forward passes of a job that are for training.

    Errors after a trained micro-batch are crashes, not refusals.
    """

    def __init__(self) -> None:
        self._passes = 0

    def begin(self) -> None:
        """Begin a job: count its micro-batches from 0."""
        self._passes = 0

    def note_pass(self) -> None:
        """Count a forward pass, whose backward pass comes before the next forward pass."""
        self._passes += 1

    @property
    def has_begun(self) -> bool:
        """Whether a micro-batch has been trained before the current one."""
        return self._passes > 1


TRAINING = Training()
