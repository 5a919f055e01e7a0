"""A recorded job gives the same bits as an unrecorded job with the same advantages."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from adapters.contract.batch.altered import painting
from adapters.contract.job import Paint
from adapters.frameworks import LISTED
from conformance.ranks.pool import Ran, RankPool
from conformance.runs import registry
from reference.aggregation import Mode
from tests.adapters.steps import LOSS_FUNCTIONS, require
from tests.jobs import job_of, step_of
from tests.mistakes_in_real_code import INSTALLED, original
from tests.pools import apart

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Adapter, Job, Layout, Observation, Rank

TOKEN = Paint(1, 0)
STEP = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])


class Engine(NamedTuple):
    """An engine of a framework."""

    framework: str
    engine: str


OTHERWISE = {Engine("trl", "liger"), Engine("trl", "rloo")}
"""Engines that have no `token_mean`, or that the installed version of the framework lacks."""

ENGINES = [
    one
    for framework in ("native", *LISTED)
    if framework not in LOSS_FUNCTIONS
    for engine in registry.adapter_classes(framework)
    if (one := Engine(framework, engine)) not in OTHERWISE
]


@dataclass(frozen=True)
class Painting:
    """An adapter's ``observe`` for jobs in which only one token is given an advantage."""

    adapter: Adapter

    def __call__(self, job: Job, rank: Rank) -> Observation:
        with painting(TOKEN):
            return type(self.adapter).observe(self.adapter, job, rank)


def painted(one: Engine) -> tuple[Adapter, Path | None]:
    """An adapter in whose jobs only one token has an advantage, and the framework's source."""
    require(one.framework)
    require(one.engine)
    adapter = registry.create(one.framework, one.engine)
    vars(adapter)["observe"] = Painting(adapter)
    is_installed = one.framework in ("native", *INSTALLED)
    if not is_installed or importlib.util.find_spec(adapter.package or "torch") is None:
        try:
            return adapter, original(one)
        except Exception as error:
            pytest.skip(f"needs {one.framework}: {error}")
    return adapter, None


def smallest(adapter: Adapter) -> Layout:
    """The simplest of an adapter's layouts with two data-parallel ranks."""
    chosen = [one for one in adapter.layouts() if one.world_size == one.dp == 2]
    return min(chosen, key=lambda one: (bool(one.options), one.micro_batches != 2))


@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
def test_a_traced_job_has_the_same_bits(engine: Engine) -> None:
    adapter, source = painted(engine)
    layout = smallest(adapter)
    job = job_of(STEP, mode=Mode.TOKEN_MEAN, layout=layout, painted=TOKEN)
    with (
        apart() if source else nullcontext(),  # the installed release may be loaded already
        RankPool(adapter, source, layout.world_size) as pool,
    ):
        untraced = pool.run(job)
        traced = pool.run(replace(job, is_recorded=True))

    assert isinstance(untraced, Ran), untraced
    assert isinstance(traced, Ran), traced
    assert traced.traces
    for one, other in zip(untraced.observations, traced.observations, strict=True):
        assert [*map(np.ndarray.tobytes, one.token_weights)] == [
            *map(np.ndarray.tobytes, other.token_weights)
        ]
        assert one.reported == other.reported
