"""NeMo-RL's real trainers and workers, where a clone is given: what they train, log and decline."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from adapters.nemo_rl import DTensorV1Adapter, DTensorV2Adapter
from adapters.toolkit.source import resolve
from conformance.ranks.messages import Declined
from conformance.ranks.pool import RankPool
from tests import command
from tests.adapters import steps

pytestmark = [
    pytest.mark.nemo_rl,
    pytest.mark.skipif(
        command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
    ),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra nemo-rl is not installed"),
]

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
CLONE = Path(os.environ.get(command.SOURCES, "")) / "nemo_rl"
SECOND = pytest.param(
    DTensorV2Adapter,
    marks=pytest.mark.skipif(
        find_spec("nemo_automodel") is None, reason="Automodel is not installed"
    ),
)


@pytest.fixture(scope="module", params=[DTensorV1Adapter, SECOND], ids=lambda one: one.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    adapter = request.param()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def test_every_option_of_the_loss_is_known(pool: RankPool) -> None:
    assert pool.description.new_options == ()


def test_packed_micro_batches_are_cut_by_tokens(pool: RankPool) -> None:
    outcome = pool.run(steps.job(layout="dp2-cp1-mb2-thd"))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == "unsupported"
    assert "cut by tokens" in outcome.message
