"""NeMo-RL's real trainers and workers, where a clone is given: what they train, log and decline."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.nemo_rl import DTensorV1Adapter, DTensorV2Adapter
from adapters.toolkit.source import resolve
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from tests import command
from tests.adapters import steps

pytestmark = [*steps.marks("nemo_rl"), steps.NEEDS_CLONES]

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
CLONE = Path(os.environ.get(command.SOURCES, "")) / "nemo_rl"
SECOND = pytest.param(DTensorV2Adapter, marks=steps.needs("dtensor_v2"))


@pytest.fixture(scope="module", params=[DTensorV1Adapter, SECOND], ids=lambda one: one.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    adapter = request.param()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def test_packed_micro_batches_are_cut_by_tokens(pool: RankPool) -> None:
    outcome = pool.run(steps.job(layout="dp2-cp1-mb2-thd"))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == "unsupported"
    assert "cut by tokens" in outcome.message
