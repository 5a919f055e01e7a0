"""The progress of a review on stderr: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

EVERY = 10.0
"""Seconds between two lines if there is no terminal."""


class BudgetBar:
    """Shows how much of a time budget is used, and the current activity."""

    def __init__(self, budget: float) -> None:
        self._bar = Progress(
            BarColumn(20), TextColumn("{task.description}"), console=Console(stderr=True)
        )
        self._bar.live.transient = True
        self._task = self._bar.add_task("starts", total=budget)
        self._next = EVERY

    def __enter__(self) -> Self:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.console.is_terminal:
            self._bar.stop()

    def show(self, seconds: float, words: str) -> None:
        """Show the elapsed seconds and the current activity."""
        said = f"{seconds:.0f} s: {words}"
        self._bar.update(self._task, completed=seconds, description=said)
        if not self._bar.console.is_terminal and seconds >= self._next:
            self._next += EVERY
            print(said, file=sys.stderr, flush=True)

    def say(self, words: str) -> None:
        """Print a line that stays above the bar."""
        if self._bar.console.is_terminal:
            self._bar.console.print(words, markup=False, highlight=False)
        else:
            print(words, file=sys.stderr, flush=True)
