"""Runs generated cases for a long time, and measures the memory that the harness takes.

``python -m tests.soak --adapter=native --minutes=30`` exits with status 1 if memory grows.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from adapters.contract import Depth
from conformance.findings.verdict import Verdict
from conformance.plan.matrix import GeneratedCell
from conformance.ranks.pool import RankPool
from conformance.runs import registry
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode

EXAMPLES = 10
"""The number of generated steps for each mode and layout of a round."""

MEGABYTE = 1 << 20

WARM_UP = 1 / 3
"""The share of rounds in which caches fill and allocators settle."""

LARGEST_GROWTH = 0.02
"""The largest allowed growth of a process's memory after the warm-up; a leak in each step would
have occurred thousands of times by then."""


@dataclass
class Memory:
    """The memory in bytes that each process shares with no other, round by round."""

    names: dict[int, str]
    seconds: list[float] = field(default_factory=list)
    bytes_of: dict[int, list[int]] = field(default_factory=dict)

    def note(self, seconds: float) -> None:
        """Measure the memory of all processes."""
        self.seconds.append(seconds)
        for pid in self.names:
            taken: int = psutil.Process(pid).memory_full_info().uss
            self.bytes_of.setdefault(pid, []).append(taken)

    def growth(self, pid: int) -> float:
        """The growth of a process after the warm-up, as a share of its memory then."""
        first = int(len(self.seconds) * WARM_UP)
        times, taken = np.array(self.seconds[first:]), np.array(self.bytes_of[pid][first:])
        return float(_slope(times, taken) * (times[-1] - times[0]) / taken[0])

    def __str__(self) -> str:
        marks = [int(part * (len(self.seconds) - 1)) for part in (0, WARM_UP, 2 / 3, 1)]
        header = [f"{self.seconds[mark] / 60:.1f} min" for mark in marks]
        rows = [("MB", *header, "growth")]
        for pid, name in self.names.items():
            at_marks = (f"{self.bytes_of[pid][mark] / MEGABYTE:.1f}" for mark in marks)
            rows.append((name, *at_marks, f"{self.growth(pid):+.2%}"))
        return "\n".join("".join(f"{cell:>12}" for cell in row) for row in rows)


def _slope(times: NDArray[np.float64], values: NDArray[np.int64]) -> float:
    """The Theil–Sen slope: the median over all pairs, which few outliers do not move."""
    early, late = np.triu_indices(len(times), k=1)
    return float(np.median((values[late] - values[early]) / (times[late] - times[early])))


def rounds(pool: RankPool, ranks: int) -> Iterator[int]:
    """Run every mode on every layout in each round, with new cases; yields the number of findings.

    Raises:
        AssertionError: a finding has crashed.
    """
    layouts = [one for one in pool.adapter.layouts() if one.world_size <= ranks]
    for number in count():
        for layout in layouts:
            for mode in Mode:
                cell = GeneratedCell(
                    mode=mode,
                    divisor=None,
                    layout=layout,
                    depth=Depth.STEP,
                    examples=EXAMPLES,
                    seed=f"soak-{number}",
                )
                finding = make(cell, SharedJobs(pool))
                assert finding.verdict is not Verdict.CRASHED, finding.message
        yield len(layouts) * len(Mode)


def soak(pool: RankPool, ranks: int, seconds: float) -> Memory:
    """Run rounds until this many seconds have passed and the last round is complete."""
    names = {psutil.Process().pid: "controller"}
    names |= {pid: f"rank {rank}" for rank, pid in enumerate(pool.pids())}
    memory, start, findings = Memory(names), time.monotonic(), 0
    for made in rounds(pool, ranks):
        findings += made
        memory.note(time.monotonic() - start)
        if memory.seconds[-1] >= seconds and len(memory.seconds) >= 4:
            break
    print(f"{findings * EXAMPLES} examples in {len(memory.seconds)} rounds")
    return memory


def main() -> int:
    """Print the memory of processes; returns 1 if the memory of any of them grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--adapter", default="native")
    parser.add_argument("--engine", default=None)
    parser.add_argument("--source", type=Path, default=None, help="folder of a checkout")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--max-ranks", type=int, default=2)
    chosen = parser.parse_args()
    adapter = registry.create(chosen.adapter, chosen.engine)
    with RankPool(adapter, chosen.source, size=chosen.max_ranks) as pool:
        memory = soak(pool, chosen.max_ranks, 60 * chosen.minutes)
    print(memory)
    return int(any(memory.growth(pid) > LARGEST_GROWTH for pid in memory.names))


if __name__ == "__main__":
    raise SystemExit(main())
