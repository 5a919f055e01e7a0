"""Records whether a job has trained a micro-batch: errors after that are crashes, not refusals."""

from __future__ import annotations


class Training:
    """Counts the forward passes of a job that are for training."""

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
"""The counter of this process, which runs one job at a time."""
