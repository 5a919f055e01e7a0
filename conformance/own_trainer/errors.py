"""What ends the check of a trainer."""

from __future__ import annotations

from reference import ConformanceError


class WrongUseError(ConformanceError):
    """A step was not used as it has to be, so that nothing can be said about the trainer."""


class WrongLossError(AssertionError):
    """The trainer does not weigh tokens as its mode says; the message has the mistakes."""


class RankFailedError(RuntimeError):
    """The loop's body raised on another rank; the message has its traceback."""
