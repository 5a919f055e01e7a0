"""The oracle: the exact weight of every token of a step, and bounds on rounding errors."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ConformanceError(ValueError):
    """An invalid input: the message states the problem, and a hint says how to fix it."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem}; {hint}" if hint else problem)
        self.hint = hint


def did_you_mean(name: str, names: Iterable[str], choose: str) -> str:
    """A hint on an unknown name: the nearest known name, if any, and then ``choose``."""
    nearest = get_close_matches(name, [*names], n=1)
    return f"did you mean '{nearest[0]}'? {choose}" if nearest else choose
