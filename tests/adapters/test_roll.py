"""ROLL's real pipeline and workers, where a clone is given: their inputs and the results."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Job
from adapters.contract.description import conventions_of
from adapters.contract.objective import Objective
from adapters.roll.engines import RollFsdpAdapter, RollMegatronAdapter
from adapters.roll.framework import ROLL
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED
from tests.pools import pool_of, trained

if TYPE_CHECKING:
    pass

pytestmark = steps.marks("roll")

COMMIT = "8eb27cc2dc34c4d1310b169d9b86d339004d811a"

CLONE = Path(os.environ.get(command.SOURCES, "")) / "roll"

TWO = "dp2-cp1-mb2-bshd"

weights_error = partial(steps.weights_error, conventions=conventions_of(ROLL.conventions))


pool = pool_of(RollFsdpAdapter, 4, COMMIT)


megatron = pool_of(RollMegatronAdapter, 2, COMMIT)


def job(case: str = MASKED.name) -> Job:
    """A job of `sample_mean`, ROLL's default mode."""
    return steps.job(case, Mode.SAMPLE_MEAN, TWO)


def test_sums_of_samples_are_averaged_without_a_divisor(pool: RankPool) -> None:
    """`seq-mean-token-sum` is the mode of L = 1; of eight samples seven have an active token."""
    given = replace(job(), aggregation=Aggregation(Mode.CONSTANT, 1.0))
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0].max() == pytest.approx(1 / 7)


def test_samples_are_dealt_by_rolls_balancing(pool: RankPool) -> None:
    """Samples are dealt by length: each rank gets four of eight, and rank 0 not the first four."""
    outcome = trained(pool, given := job("uneven_lengths"))

    dealt = steps.dealt(outcome, given)
    assert [len(one) for one in dealt] == [4, 4]
    assert not np.intersect1d(*dealt).size
    assert dealt[0].tolist() != [0, 1, 2, 3]


def test_packed_rows_are_a_call_of_the_loss_for_each_sample(megatron: RankPool) -> None:
    """If the loss is called for each sample, logged means over calls are means over samples."""
    outcome = trained(megatron, steps.job(MASKED.name, Mode.SAMPLE_MEAN, "dp2-cp1-mb2-thd"))

    calls = [{*rank.forward_passes[0].tolist()} - {-1} for rank in outcome.observations]
    assert [len(one) for one in calls] == [4, 4]


def test_dynamic_batches_train_with_the_log_probabilities_of_their_step(megatron: RankPool) -> None:
    """The loss counts all eight samples before it filters two of them out."""
    given = steps.job("rejected_group", Mode.SAMPLE_MEAN, "dp1-cp1-mbtokens-bshd")
    outcome = trained(megatron, replace(given, objective=Objective.REJECTION))

    assert outcome.observations[0].token_weights[0][0] == pytest.approx(1 / (8 * 3))
