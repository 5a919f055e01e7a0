"""The base class of errors that a user can do something about."""

from __future__ import annotations


class ConformanceError(ValueError):
    """What was given cannot be worked with: the problem, and a hint that names the way out."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem}; {hint}" if hint else problem)
        self.hint = hint
