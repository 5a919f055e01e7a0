"""NeMo-RL's real trainers and workers, where a clone is given: what they train, log and decline."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from adapters.contract import Job
from adapters.contract.objective import Objective
from adapters.nemo_rl import DTensorV1Adapter, DTensorV2Adapter
from adapters.toolkit.source import resolve
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, RankPool
from reference.aggregation import Mode
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED

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
BY_TOKENS = "dp2-cp1-mbtokens-bshd"


@pytest.fixture(scope="module", params=[DTensorV1Adapter, SECOND], ids=lambda one: one.engine)
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    adapter = request.param()
    with RankPool(adapter, resolve(adapter, f"{CLONE}@{COMMIT}").path, 4) as pool:
        yield pool


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: str = BY_TOKENS,
    objective: Objective = Objective.POLICY,
) -> Job:
    return steps.job(case, mode, layout, objective)


def test_every_option_of_the_loss_is_known(pool: RankPool) -> None:
    assert pool.description.new_options == ()


@pytest.mark.parametrize(
    ("objective", "mode"),
    [(Objective.GSPO, Mode.TOKEN_MEAN), (Objective.CISPO, Mode.SAMPLE_MEAN)],
)
def test_losses_of_one_mode_are_declined_in_the_other(
    pool: RankPool, objective: Objective, mode: Mode
) -> None:
    outcome = pool.run(job(mode=mode, objective=objective))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"


def test_step_without_valid_samples_ends_the_trainer(pool: RankPool) -> None:
    """The optimizer has stepped; no micro-batch is logged, and the log wants their tokens."""
    outcome = pool.run(job("no_active_token"))

    assert isinstance(outcome, Crashed), outcome
    assert "KeyError: 'global_valid_toks'" in outcome.message


@pytest.mark.parametrize(
    ("case", "layout", "verdict", "reason"),
    [
        ("nine_samples", BY_TOKENS, "refused", "not a multiple of shards"),
        ("nine_samples", "dp1-cp1-mb2-bshd", "unsupported", "no micro-batches of 4"),
        (MASKED.name, "dp2-cp1-mb2-thd", "unsupported", "cut by tokens"),
    ],
)
def test_steps_that_are_not_cut_evenly_are_declined(
    pool: RankPool, case: str, layout: str, verdict: str, reason: str
) -> None:
    outcome = pool.run(job(case, layout=layout))

    assert isinstance(outcome, Declined), outcome
    assert outcome.verdict == verdict
    assert reason in outcome.message
