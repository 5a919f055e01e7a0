"""How long a job is waited for: a hang once as long as the user allows, others like it shortly.

A job is like one that hung if it has the same objective and no more tokens. Of such jobs most hang
too, and those that do not are done long before `TIMES` times the slowest job so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.contract.objective import Objective

TIMES = 20
"""How often the slowest job so far fits into the time limit of one that is like a hang."""

LEAST = 10.0
"""Seconds, doubled until they are enough."""


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
