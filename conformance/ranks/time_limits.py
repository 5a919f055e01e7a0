"""The time to wait for a job: until its ranks wait for each other, or as the user allows.

Ranks that wait for each other use next to no CPU time. One that still does is slow; one that uses
none may wait for a disk or a GPU. So a job is given up early if all its ranks are quiet and each is
seen to wait in a collective, or if one like it did before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS_OF_QUIET = 5.0
"""In which no rank of a job that hangs uses CPU time."""

QUIET_IN_A_TRIAL = 1.0
"""The same of a job with an edit or another value, which often parts ranks that should meet."""

SHARE_AT_WORK = 0.015
"""The least share of a core of a rank at work, as dozens of processes may share it; ranks that wait
for each other to make a process group were seen to use 0.004."""


class Patience:
    """Stop waiting for ranks once none of them is at work, at the latest after ``limit``.

    They are looked at every ``quiet`` seconds, twice at least; ``at_work`` are those that were
    between the last two looks. If no hang is expected, quiet ranks must be seen to wait.
    """

    def __init__(self, limit: float, quiet: float, *, expects_a_hang: bool = False) -> None:
        self.at_work: frozenset[int] = frozenset()
        self.expects_a_hang = expects_a_hang
        self._latest = time.monotonic() + limit
        self._interval = limit
        self._next = self._latest
        self._cpu_seconds: Mapping[int, float] = {}
        self._look_every(min(quiet, limit / 2))

    def seconds(self) -> float:
        """The seconds until the next look at the ranks that have not answered."""
        return max(self._next - time.monotonic(), 0.0)

    def look_within(self, seconds: float) -> None:
        """Give up earlier on ranks that are not at work by then: they will not answer."""
        self.expects_a_hang = True
        self._look_every(seconds / 2)

    def end_within(self, seconds: float) -> None:
        """Give up by then on those that are at work too."""
        self._latest = min(self._latest, time.monotonic() + seconds)
        self._look_every(seconds / 2)

    @property
    def is_over(self) -> bool:
        """Whether the user allows no more."""
        return time.monotonic() >= self._latest

    def ends(self, cpu_seconds: Mapping[int, float]) -> bool:
        """Look at what each rank has used up to now; returns whether to stop waiting."""
        now = time.monotonic()
        if now < self._next:
            return False
        before, self._cpu_seconds = self._cpu_seconds, cpu_seconds
        least = SHARE_AT_WORK * self._interval
        self.at_work = frozenset(
            rank
            for rank, used in cpu_seconds.items()
            if rank in before and used - before[rank] > least
        )
        self._next = min(now + self._interval, self._latest)
        return self.is_over or (bool(before) and not self.at_work)

    def _look_every(self, seconds: float) -> None:
        self._interval = min(self._interval, seconds)
        self._next = min(self._next, time.monotonic() + self._interval, self._latest)
