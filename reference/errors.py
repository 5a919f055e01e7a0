"""The base class of errors that a user can fix."""

from __future__ import annotations


class ConformanceError(ValueError):
    """An invalid input: the message states the problem, and a hint says how to fix it."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem}; {hint}" if hint else problem)
        self.hint = hint
