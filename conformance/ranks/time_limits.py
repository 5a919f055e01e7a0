"""How long a job is waited for: a hang once as long as the user allows, others like it shortly.

A job is like one that hung if it has the same objective and no more tokens. Of such jobs most hang
too, and those that do not are done long before `TIMES` times the slowest job so far. A rank that
still uses CPU time does not hang: it is slow, and waited for as long as the user allows.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract import Job
    from adapters.contract.objective import Objective

TIMES = 20
"""How often the slowest job so far fits into the time limit of one that is like a hang."""

LEAST = 10.0
"""Seconds, doubled until they are enough."""

SECONDS_OF_A_LOOK = 2.0
"""Before a deadline, in which ranks that are at work use CPU time."""

SHARE_AT_WORK = 0.015
"""Of a core, that a rank at work uses though dozens of processes share it; ranks that wait for each
other to make a process group were seen to use 0.004."""


class Patience:
    """When to stop waiting for ranks: at a deadline, or at a later one while any is at work.

    Both are times of `time.monotonic`; ``at_work`` are the ranks that were when the wait ended.
    """

    def __init__(self, deadline: float, latest: float) -> None:
        self.at_work: frozenset[int] = frozenset()
        self._deadline = deadline
        self._latest = latest
        self._looked = 0.0
        self._cpu_seconds: Mapping[int, float] = {}

    def seconds(self) -> float:
        """The seconds until the next look at the ranks that have not answered."""
        look = 0.0 if self._cpu_seconds else SECONDS_OF_A_LOOK
        return max(self._deadline - look - time.monotonic(), 0.0)

    def look_within(self, seconds: float) -> None:
        """Move the deadline forward: those that are not at work by then will not answer."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def end_within(self, seconds: float) -> None:
        """Move both times forward."""
        self.look_within(seconds)
        self._latest = self._deadline

    def ends(self, cpu_seconds: Mapping[int, float]) -> bool:
        """Look at what each rank has used up to now; returns whether to stop waiting."""
        now, looked, before = time.monotonic(), self._looked, self._cpu_seconds
        self._looked, self._cpu_seconds = now, cpu_seconds
        if now < self._deadline:
            return False
        least = SHARE_AT_WORK * (now - looked)
        self.at_work = frozenset(
            rank
            for rank, used in cpu_seconds.items()
            if rank in before and used - before[rank] > least
        )
        self._deadline = min(now + LEAST, self._latest)
        return not self.at_work or now >= self._latest


class TimeLimits:
    """The time limit of each job, given those before; ``longest`` seconds at most."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._slowest = 0.0
        self._hung: dict[Objective, int] = {}
        """The most tokens of a job that hung, by objective."""

    def of(self, job: Job) -> float:
        """The seconds to wait for a job."""
        if _tokens(job) > self._hung.get(job.objective, -1):
            return self._longest
        doublings = max(0, math.ceil(math.log2(max(TIMES * self._slowest / LEAST, 1))))
        return min(self._longest, LEAST * 2.0**doublings)

    def ran(self, seconds: float) -> None:
        """Note how long a job took that every rank ran."""
        self._slowest = max(self._slowest, seconds)

    def hung(self, job: Job) -> None:
        """Note a job that reached its time limit."""
        self._hung[job.objective] = max(_tokens(job), self._hung.get(job.objective, 0))


def _tokens(job: Job) -> int:
    return sum(int(step.mask.size) for step in job.steps)
