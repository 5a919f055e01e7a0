"""TRL's real `AsyncGRPOTrainer`, from PyPI: its inputs and the results."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Job
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import ENTROPIES, LOG_RATIOS
from adapters.contract.description import conventions_of
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.trl.engines import ASYNC, TrlAsyncAdapter
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Mode
from tests.adapters import steps
from tests.pools import pool_of, trained

pytestmark = steps.marks("trl")

WHOLE, HALVES = "dp2-cp1-mb1-thd", "dp2-cp1-mb2-thd"


pool = pool_of(TrlAsyncAdapter, 2)


def job(
    case: str = "uneven_lengths", layout: str = WHOLE, objective: Objective = Objective.POLICY
) -> Job:
    return steps.job(case, Mode.TOKEN_MEAN, layout, objective)


def batch_of(given: Job) -> ProbedBatch:
    """The batch that the trainer is given."""
    return ProbedBatch.make(conventions_of(ASYNC.conventions), given.steps, given.objective)


def active_ids(given: Job) -> list[NDArray[np.int64]]:
    """The ids of each sample's tokens that are trained."""
    batch = batch_of(given)
    return [ids[mask] for ids, mask in zip(batch.responses, batch.masks, strict=True)]


def test_ranks_have_whole_prompts_however_many_samples(pool: RankPool) -> None:
    """One prompt costs attention as much as the other three, so one rank has only that prompt."""
    given = job()
    outcome = trained(pool, given)

    ends = np.cumsum([len(ids) for ids in batch_of(given).responses])[:-1]
    held = [
        [int(sample.min()) for sample in np.split(rank.forward_passes[0], ends)]
        for rank in outcome.observations
    ]
    assert sorted(held) == [[-1, -1, -1, -1, 0, 0, -1, -1], [0, 0, 0, 0, -1, -1, 0, 0]]


def test_samples_of_a_prompt_share_it_up_to_its_last_token() -> None:
    from adapters.trl.asynchronous import prompt_of_group  # imports transformers

    batch = batch_of(job())
    first, second, third, *_ = (prompt_of_group(batch, index).tolist() for index in range(3))

    assert [len(prompt) for prompt in batch.prompts[:3]] == [3, 5, 2]
    assert second[:2] == first[:2]
    assert second[-1] + 1 == batch.responses[1][0]
    assert not {*third} & {*first, *second}


@pytest.mark.parametrize(
    ("layout", "cuts"), [(WHOLE, (slice(0, 8),)), (HALVES, (slice(0, 4), slice(4, 8)))]
)
def test_logged_diagnostics_are_means_of_micro_batches(
    pool: RankPool, layout: str, cuts: tuple[slice, ...]
) -> None:
    """Each micro-batch's mean of entropies or clipped tokens is over the tokens of all ranks."""
    given = job(layout=layout, objective=Objective.OFF_POLICY)
    outcome = pool.run(given)
    signs = np.sign([advantages[0] for advantages in batch_of(given).advantages])

    def mean(values: Any) -> float:
        """The mean over micro-batches of the mean of values by token id and advantage's sign."""
        of_samples = [values(ids, sign) for ids, sign in zip(active_ids(given), signs, strict=True)]
        return float(np.mean([np.concatenate(of_samples[cut]).mean() for cut in cuts]))

    def clipped(ids: NDArray[np.int64], sign: float) -> NDArray[np.bool_]:
        ratios = np.exp(LOG_RATIOS[ids % len(LOG_RATIOS)])
        too_large = (ratios > 1 + CONSTANTS.clip_high) & (sign > 0)
        return too_large | ((ratios < 1 - CONSTANTS.clip_low) & (sign < 0))

    assert isinstance(outcome, Ran), outcome
    entropy = mean(lambda ids, _: ENTROPIES[ids % len(ENTROPIES)])
    for rank in outcome.observations:
        assert rank.reported[Metric.ENTROPY] == pytest.approx((entropy,))
        assert rank.reported[Metric.CLIP_FRACTION] == pytest.approx((mean(clipped),))


def test_one_rank_is_no_engine_of_several(pool: RankPool) -> None:
    outcome = pool.run(job(layout="dp1-cp1-mb1-thd"))

    assert isinstance(outcome, Declined)
    assert "only in distributed training" in outcome.message
