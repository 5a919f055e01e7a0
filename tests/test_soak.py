"""The soak run detects memory that leaks little by little."""

from collections.abc import Sequence

import pytest

from adapters.contract import Job, Layout, Observation, Rank
from adapters.native.adapter import NativeAdapter
from conformance.ranks.pool import RankPool
from tests import soak

KEPT: list[bytearray] = []


class Leaking(NativeAdapter):
    """Keeps some memory after every step, on each of two ranks."""

    def layouts(self) -> Sequence[Layout]:
        return [Layout(dp=2)]

    def observe(self, job: Job, rank: Rank) -> Observation:
        KEPT.append(bytearray(1 << 18))
        return super().observe(job, rank)


@pytest.mark.parametrize(
    ("taken", "growth"),
    [
        ([100] * 12, 0),
        ([50, 90, *[100] * 10], 0),
        ([*[100] * 10, 130, 130], 0),
        ([100 + minute for minute in range(12)], 0.07),
    ],
    ids=["steady", "filling up", "a late jump", "growing"],
)
def test_growth_is_what_goes_on(taken: list[int], growth: float) -> None:
    memory = soak.Memory({1: "rank 0"})
    memory.seconds, memory.bytes_of[1] = [60.0 * minute for minute in range(12)], taken

    assert memory.growth(1) == pytest.approx(growth, abs=0.007)


@pytest.mark.processes
def test_a_leak_of_an_adapter_is_growth_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "EXAMPLES", 1)
    with RankPool(Leaking(), None, size=2) as pool:
        memory = soak.soak(pool, ranks=2, seconds=0)
        print(memory)

        assert all(memory.growth(pid) > soak.LARGEST_GROWTH for pid in pool.pids())
