"""The time to wait for a job: until its ranks hang, or until the user's time limit.

Ranks that wait for each other use next to no CPU time. A rank that uses CPU time is slow; a rank
that uses none may wait for a disk or a GPU. So a job is given up early if all its ranks use no CPU
time and each one's stack shows a collective, or if a similar job hung before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from adapters.contract.job import CodeChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract import Job

SECONDS_OF_QUIET = 5.0
"""Seconds without CPU time on any rank after which a job counts as hanging."""

QUIET_IN_A_TRIAL = 1.0
"""Seconds without CPU time for a job with an edited statement or a replaced value; its ranks often
wait at different collectives."""

SECONDS_OF_AN_EDIT = 20.0
"""The most seconds for a job with an edited statement, which may loop without end."""

SHARE_AT_WORK = 0.015
"""The smallest share of a core that a working rank uses, as dozens of processes may share the core.
Ranks that waited for each other to make a process group used 0.004."""


def patience_with(job: Job, time_limit: float, *, expects_a_hang: bool) -> Patience:
    """The time to wait for a job; a job that tries an edit or another value ends early."""
    quiet = SECONDS_OF_QUIET if job.replaced is None else QUIET_IN_A_TRIAL
    most = (
        min(time_limit, SECONDS_OF_AN_EDIT) if isinstance(job.replaced, CodeChange) else time_limit
    )
    return Patience(most, quiet, expects_a_hang=expects_a_hang)


class Patience:
    """Stop waiting for ranks once none of them is at work, at the latest after ``limit``.

    Ranks are examined every ``quiet`` seconds, at least twice; ``at_work`` are the ranks that used
    CPU time between the last two examinations. If no hang is expected, the stacks of quiet ranks
    must also show that they wait.
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
        """The seconds until the ranks that have not answered are examined next."""
        return max(self._next - time.monotonic(), 0.0)

    def look_within(self, seconds: float) -> None:
        """Give up within some seconds on ranks that are not at work: they will not answer."""
        self.expects_a_hang = True
        self._look_every(seconds / 2)

    def end_within(self, seconds: float) -> None:
        """Give up within some seconds on all ranks, even those at work."""
        self._latest = min(self._latest, time.monotonic() + seconds)
        self._look_every(seconds / 2)

    @property
    def is_over(self) -> bool:
        """Whether the time limit is over."""
        return time.monotonic() >= self._latest

    def ends(self, cpu_seconds: Mapping[int, float]) -> bool:
        """Record the CPU seconds of each rank so far; returns whether to stop waiting."""
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
