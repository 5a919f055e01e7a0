"""Routers that replay the experts which a rollout chose, tested without a framework."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from adapters.contract import Depth, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Objective
from reference.aggregation import Mode
from tests.adapters import steps

torch = pytest.importorskip("torch")

from adapters.slime.adapter import SlimeAdapter  # noqa: E402 - it needs torch
from adapters.slime_family import replay  # noqa: E402 - it needs torch

LAYER, CAPACITY = 1, 16


def entries(ids: "torch.Tensor", chosen: "torch.Tensor") -> tuple[list[object], list[int]]:
    """The ids of tokens that got their own experts, and the entries of the probe that are read."""
    router = replay.ReplayingRouter(LAYER)
    router.compute_topk = lambda scores, topk: (scores[:, :topk], chosen.unsqueeze(1))

    own, probe = router(ids, torch.ones(CAPACITY))
    return own.tolist(), torch.nonzero(probe).flatten().tolist()


def test_a_token_is_read_if_its_position_has_its_own_expert() -> None:
    ids = torch.tensor([[4, 5, 6]])

    assert entries(ids, replay.expert_of(ids[0], LAYER)) == ([[4, 5, 6]], [5, 6, 7])


def test_a_token_whose_position_has_the_expert_of_another_is_not_read() -> None:
    """Examples are a slice that is off by one, and the experts of the previous layer."""
    ids = torch.tensor([[4, 5, 6]])

    assert entries(ids, replay.expert_of(ids[0].roll(1), LAYER)) == ([[0, 0, 0]], [])
    assert entries(ids, replay.expert_of(ids[0], LAYER - 1)) == ([[0, 0, 0]], [])


def test_rows_are_routed_token_by_token_as_megatron_core_does() -> None:
    """Megatron-Core's hidden states are [tokens, rows], though a framework's ids may not be."""
    ids = torch.tensor([[4, 5], [8, 9]])

    assert entries(ids, replay.expert_of(ids.T.flatten(), LAYER))[1] == [5, 6, 9, 10]
    assert entries(ids, replay.expert_of(ids.flatten(), LAYER))[1] == [5, 10]


def test_rollouts_choose_an_expert_for_each_token_that_they_have_read() -> None:
    batch = ProbedBatch.of(steps.job("uneven_lengths", Mode.SAMPLE_MEAN, "dp1-cp1-mb1-thd"))
    chosen = replay.routed_experts(batch, layers=2)
    read = [np.concatenate(pair)[:-1] for pair in zip(batch.prompts, batch.responses, strict=True)]

    assert [one.shape for one in chosen] == [(len(ids), 2, 1) for ids in read]
    assert all((one[:, 1, 0] == ids + 1).all() for one, ids in zip(chosen, read, strict=True))


@pytest.mark.parametrize(
    ("objective", "depth"),
    [
        (Objective.ROUTER, Depth.STEP),
        (Objective.VALUE, Depth.STEP),
        (Objective.POLICY, Depth.LOSS),
    ],
)
def test_a_job_without_the_choices_of_a_rollout_is_not_driven(
    objective: Objective, depth: Depth
) -> None:
    args = SimpleNamespace(use_rollout_routing_replay=True)
    job = replace(steps.job(), objective=objective, depth=depth)

    with pytest.raises(Unsupported, match=f"no routing replay of {objective} at depth {depth}"):
        SlimeAdapter().routing(args, job, chunks=[])
