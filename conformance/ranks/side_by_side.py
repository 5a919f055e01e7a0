"""Runs several jobs at the same time, each on ranks of its own."""

from __future__ import annotations

import os
from collections import deque
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.job import CodeChange
from conformance.ranks.messages import Declined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from adapters.contract import Job
    from conformance.ranks.pool import Crashed, Ran, RankPool

    Outcome = Ran | Declined | Crashed

MOST_POOLS = 8
"""The most pools, as each rank needs the memory of a small model and its optimizer."""


class SideBySide(AbstractContextManager["SideBySide"]):
    """Pools of one framework, as many as there are cores for; each runs jobs of ``size`` ranks."""

    def __init__(self, pool: RankPool, size: int) -> None:
        at_once = min(MOST_POOLS, (os.cpu_count() or 1) // size)
        self._resources = ExitStack()
        enter = self._resources.enter_context
        self._free = deque(enter(pool.another(size)) for _ in range(max(1, at_once)))

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def outcomes(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes of jobs in their order, while the next jobs run.

        If the caller stops early, jobs that have begun are completed first.

        Raises:
            StartError: the framework cannot be imported.
        """
        busy: deque[tuple[RankPool, Job]] = deque()
        try:
            for job in jobs:
                pool = self._free.popleft()
                busy.append((pool, job))
                pool.begin(job)
                if not self._free:
                    yield self._ended(busy)
            while busy:
                yield self._ended(busy)
        finally:
            while busy:
                self._ended(busy)

    def _ended(self, busy: deque[tuple[RankPool, Job]]) -> Outcome:
        """The outcome of the job that began first.

        An edited step that raises may leave state behind with which every further step raises. The
        unchanged job is therefore run again: if it fails, its pool starts new ranks.
        """
        pool, job = busy.popleft()
        self._free.append(pool)
        outcome = pool.outcome()
        if isinstance(job.replaced, CodeChange) and isinstance(outcome, Declined):
            pool.run(replace(job, replaced=None))
        return outcome
