"""The task file of a run in a review, which compares the runs of two versions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Self

from adapters.contract import Layout
from conformance.plan.telling import Layouts
from conformance.ranks.changed import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ReviewTask:
    """The task of the head's or the base's run in a review.

    The head looks for jobs that run the changed ``lines``; ``hunks`` are its changes, by file. The
    base ``follows`` the head's report. ``kept`` are ids of the base's findings that need not be
    made again, and ``base`` the reports with all findings of the base. From ``trace_at``, in
    seconds since the epoch, the head makes no further findings if a finding is worse by then.
    """

    usual: tuple[str, ...]
    special: tuple[str, ...] = ()
    lines: Mapping[str, list[int]] | None = None
    hunks: Mapping[str, str] = field(default_factory=dict)
    follows: str | None = None
    kept: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    trace_at: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a task from its file."""
        return cls(**json.loads(path.read_bytes()))

    def write(self, path: Path) -> None:
        """Write the task to a file."""
        path.write_text(json.dumps(asdict(self)))

    @property
    def layouts(self) -> Layouts:
        """The layouts to run on."""
        return Layouts(
            usual=tuple(map(Layout.parse, self.usual)),
            special=tuple(map(Layout.parse, self.special)),
        )


def note(path: Path, ran: Iterable[Place]) -> None:
    """Note changed statements that a job of a task's run has executed."""
    with _of_task(path).open("a") as file:
        file.writelines(json.dumps(place) + "\n" for place in ran)


def ran(path: Path) -> set[Place]:
    """The changed statements that the jobs of a task's run have executed."""
    try:
        lines = _of_task(path).read_text().split("\n")[:-1]
    except FileNotFoundError:
        return set()
    return {Place(*json.loads(line)) for line in lines}


def note_more(path: Path) -> None:
    """Note that a task's run has left out informative jobs."""
    path.with_suffix(".more").touch()


def has_more(path: Path) -> bool:
    """Whether a task's run has left out informative jobs."""
    return path.with_suffix(".more").exists()


def _of_task(path: Path) -> Path:
    return path.with_suffix(".ran")
