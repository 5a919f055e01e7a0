"""How far two runs have come, on the error stream: two lines that are written over and over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self


class TwoBars:
    """A bar for each of two runs, with the finding that it has just made; nothing if piped."""

    def __init__(self, *names: str, total: int) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[last]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks = [self._bars.add_task(name, total=total, last="") for name in names]

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, *made: Sequence[str]) -> None:
        """Show the ids of the findings that each run has made."""
        for task, ids in zip(self._tasks, made, strict=True):
            last = ids[-1] if ids else "starts"
            self._bars.update(task, completed=len(ids), last=last)
