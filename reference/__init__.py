"""The oracle: the exact weight of every token of a step, and bounds on rounding errors."""

from __future__ import annotations


class ConformanceError(ValueError):
    """An invalid input: the message states the problem, and a hint says how to fix it."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem}; {hint}" if hint else problem)
        self.hint = hint
