"""A traced job gives the same bits as one that is not traced and has the same advantages."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Layout
from adapters.contract.batch.altered import painting
from adapters.native.adapter import NativeAdapter
from adapters.skyrl.adapter import SkyRLFsdpAdapter, SkyRLMegatronAdapter
from conformance.ranks.pool import Ran, RankPool
from tests.jobs import job_of, step_of

if TYPE_CHECKING:
    from adapters.contract import Adapter, Job, Observation, Rank

TOKEN = (1, 0)
STEP = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])


class _Painting:
    """Gives one token alone an advantage in every job."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        with painting(TOKEN):
            return super().observe(job, rank)  # type: ignore[misc,no-any-return]


class PaintedNative(_Painting, NativeAdapter):
    """`native`."""


class PaintedFsdp(_Painting, SkyRLFsdpAdapter):
    """SkyRL on FSDP2."""


class PaintedMegatron(_Painting, SkyRLMegatronAdapter):
    """SkyRL on Megatron-Core."""


@pytest.mark.parametrize(
    ("adapter", "layout", "package"),
    [
        (PaintedNative(), Layout(dp=2, micro_batches=2), "torch"),
        (PaintedFsdp(), Layout(dp=2, format="bshd"), "skyrl"),
        (PaintedMegatron(), Layout(dp=2, micro_batches=2), "skyrl"),
    ],
)
def test_a_traced_job_has_the_same_bits(adapter: Adapter, layout: Layout, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    with RankPool(adapter, None, layout.world_size) as pool:
        untraced = pool.run(job_of(STEP, layout=layout))
        traced = pool.run(job_of(STEP, layout=layout, painted=TOKEN))

    assert isinstance(untraced, Ran), untraced
    assert isinstance(traced, Ran), traced
    assert traced.traces
    for one, other in zip(untraced.observations, traced.observations, strict=True):
        assert [*map(np.ndarray.tobytes, one.token_weights)] == [
            *map(np.ndarray.tobytes, other.token_weights)
        ]
        assert one.reported == other.reported
