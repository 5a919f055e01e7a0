"""The cost of a layout by the number of its ranks."""

import time
from dataclasses import dataclass
from statistics import median

import psutil

from adapters.contract import Depth, Job, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Mode

SIZES = (1, 2, 4, 8, 16, 32, 64)
STEPS = 5

CASE = next(case for case in CORPUS if case.name == "unequal_groups")

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Cost:
    """The cost of a number of ranks: seconds for all ranks, memory and files of a median rank."""

    to_start: float
    to_meet: float
    finding: float
    memory: float
    """Bytes of a rank, without the memory that it shares with the process it was forked from."""

    files: float
    """Open files, including connections to other ranks."""


def main() -> None:
    """Print a row for each number of ranks, over gloo."""
    print("layouts: ranks  s to start  ms to make a world  ms a finding  MB a rank  files a rank")
    for size in SIZES:
        cost = measure(size)
        times = f"{cost.to_start:12.1f}{1000 * cost.to_meet:20.0f}{1000 * cost.finding:14.1f}"
        print(f"{size:14}{times}{cost.memory / MEGABYTE:11.0f}{cost.files:14.0f}")


def measure(size: int) -> Cost:
    """Run one step of `token_mean` several times, on at most eight context-parallel ranks."""
    cp = min(size, 8)
    job = Job(
        steps=CASE.steps,
        aggregation=CASE.aggregation(Mode.TOKEN_MEAN),
        layout=Layout(dp=size // cp, cp=cp, format="thd"),
        depth=Depth.STEP,
    )
    start = time.perf_counter()
    with RankPool(NativeAdapter(), None, size) as pool:
        processes = [psutil.Process(pid) for pid in pool.pids()]
        started = time.perf_counter() - start
        first, *later = [_seconds(pool, job) for _ in range(1 + STEPS)]
        return Cost(
            to_start=started,
            to_meet=first - median(later),
            finding=median(later),
            memory=median(process.memory_full_info().uss for process in processes),
            files=median(process.num_fds() for process in processes),
        )


def _seconds(pool: RankPool, job: Job) -> float:
    start = time.perf_counter()
    assert isinstance(pool.run(job), Ran)
    return time.perf_counter() - start
