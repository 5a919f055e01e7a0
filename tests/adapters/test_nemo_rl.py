"""NeMo-RL's real trainers and workers, where a clone is given: what they train, log and decline."""

from collections.abc import Iterator

import pytest

from adapters.nemo_rl import DTensorV1Adapter, DTensorV2Adapter
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from tests.adapters import steps
from tests.pools import version_of

pytestmark = steps.marks("nemo_rl")

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
SECOND = pytest.param(DTensorV2Adapter, marks=steps.needs("dtensor_v2"))


@pytest.fixture(scope="module", params=[DTensorV1Adapter, SECOND], ids=lambda one: one.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    adapter = request.param()
    with RankPool(adapter, version_of(adapter, COMMIT), 4) as pool:
        yield pool


def test_packed_micro_batches_are_cut_by_tokens(pool: RankPool) -> None:
    outcome = pool.run(steps.job(layout="dp2-cp1-mb2-thd"))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == "unsupported"
    assert "cut by tokens" in outcome.message
