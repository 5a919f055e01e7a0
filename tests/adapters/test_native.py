"""The parts of `native`, the example framework, that runs of the suite do not test."""

from collections.abc import Iterator

import pytest
import torch

from adapters.contract import Layout
from adapters.contract.batch.sequences import PADDING_ID
from adapters.native.adapter import NativeAdapter
from adapters.native.packing import SampleTensors, pack
from adapters.native.trainer import Trainer
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Mode
from tests.adapters import steps
from tests.jobs import job_of


def samples(*lengths: int) -> list[SampleTensors]:
    starts = torch.tensor([1, *lengths]).cumsum(0).tolist()
    return [
        SampleTensors(
            ids=torch.arange(start, start + length),
            advantages=torch.ones(length),
            old_log_probs=torch.zeros(length),
            reference_log_probs=torch.zeros(length),
            rollout_log_probs=torch.zeros(length),
            old_values=torch.zeros(length),
            returns=torch.zeros(length),
            mask=torch.ones(length, dtype=torch.bool),
            original_mask=torch.ones(length, dtype=torch.bool),
            log_probs=torch.zeros(length),
            entropies=torch.zeros(length),
            correction=torch.ones(length),
            values=torch.zeros(length),
            teacher_log_probs=torch.zeros(length),
            response_length=length,
            reward=0.0,
            group=0,
            rollout=0,
            denominator=float(length),
        )
        for start, length in zip(starts, lengths, strict=False)
    ]


def trainer(layout: Layout, rank: int = 0) -> Trainer:
    aggregation = Aggregation(Mode.TOKEN_MEAN)
    return Trainer(job_of(aggregation=aggregation, layout=layout), rank)


def test_zigzag_pairs_first_and_last_chunk() -> None:
    [of_first, of_second] = [
        pack(samples(8), Layout(cp=2, format="thd"), rank).ids.tolist() for rank in range(2)
    ]

    assert of_first == [2, 3, 8, PADDING_ID]
    assert of_second == [4, 5, 6, 7]


def test_uneven_micro_batches_differ_in_size() -> None:
    parts = trainer(Layout(micro_batches="uneven")).cut(samples(*[2] * 6))

    assert [len(part) for part in parts] == [1, 2, 3]


PLAIN = steps.job(layout="dp1-cp1-mb1-thd")


@pytest.fixture(scope="module")
def session_pool() -> Iterator[RankPool]:
    with RankPool(NativeAdapter(), None, 1) as pool:
        assert isinstance(pool.run(PLAIN), Ran)
        yield pool


@pytest.mark.usefixtures("other_release")
def test_ranks_of_another_release_leave_those_of_the_session_alive(session_pool: RankPool) -> None:
    """A suite in the same process once lost its ranks when the other fork server ended."""
    with RankPool(NativeAdapter(), None, 1) as pool:
        assert isinstance(pool.run(PLAIN), Ran)
    assert isinstance(session_pool.run(PLAIN), Ran)
