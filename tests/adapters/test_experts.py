"""Experts that ranks share, and the losses of their router, without a framework."""

from types import SimpleNamespace

import pytest
import torch

from adapters.contract import Depth, Layout, Option, Unsupported
from adapters.contract.objective import Objective
from adapters.engines import experts
from reference.aggregation import Mode
from tests.adapters import steps

SHARED = Layout(dp=2, options=(Option.EXPERT_PARALLEL,))


def test_a_model_whose_ranks_share_no_experts_is_left_as_it_is() -> None:
    alone = experts.Experts(SimpleNamespace(expert_model_parallel_size=1))
    probe = torch.nn.Parameter(torch.ones(4))

    alone.own(probe)

    assert not hasattr(probe, "allreduce")
    assert alone.entries(probe) is probe
    assert alone.whole(probe.detach()).tolist() == [1.0, 1.0, 1.0, 1.0]


def test_a_probe_of_experts_is_one_that_megatron_reduces_by_itself() -> None:
    probe = torch.nn.Parameter(torch.zeros(4))

    experts.Experts(SimpleNamespace(expert_model_parallel_size=2)).own(probe)

    assert probe.allreduce is False  # type: ignore[attr-defined]


def test_an_expert_gets_the_gradients_of_other_ranks_where_its_own_are_not_contiguous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other rank's gradients are 1, and this rank has no token, so its loss is 0."""
    pytest.importorskip("megatron.core")
    from megatron.core import mpu
    from megatron.core.tensor_parallel import mappings

    def reduced(given: torch.Tensor, **_: object) -> None:
        given.add_(1.0)

    monkeypatch.setattr(
        mpu, "get_expert_model_parallel_group", lambda: SimpleNamespace(size=lambda: 2)
    )
    monkeypatch.setattr(mpu, "get_expert_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(mappings, "get_tensor_model_parallel_group_if_none", lambda group: group)
    monkeypatch.setattr(torch.distributed, "all_reduce", reduced)
    monkeypatch.setattr(mappings, "reduce_from_tensor_model_parallel_region", lambda one, _: one)
    probe = torch.nn.Parameter(torch.zeros(4))

    entries = experts.Experts(SimpleNamespace(expert_model_parallel_size=2)).entries(probe)
    torch.autograd.backward(0 * entries.sum())

    assert probe.grad is not None
    assert probe.grad.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_experts_are_shared_in_whole_steps_alone() -> None:
    assert [experts.ranks_that_share(layout) for layout in (Layout(dp=2), SHARED)] == [1, 2]
    experts.require_step(Layout(dp=2), Depth.LOSS)
    experts.require_step(SHARED, Depth.STEP)
    with pytest.raises(Unsupported, match="no experts at depth loss"):
        experts.require_step(SHARED, Depth.LOSS)


@pytest.mark.parametrize(("layout", "count"), [("", 1), ("+expert_parallel", 2)])
def test_a_router_has_an_expert_for_each_rank_that_shares_them(layout: str, count: int) -> None:
    given = steps.job("uneven_lengths", Mode.TOKEN_MEAN, f"dp2-cp1-mb1-bshd{layout}")
    routed = steps.job(
        "uneven_lengths", Mode.TOKEN_MEAN, f"dp2-cp1-mb1-bshd{layout}", Objective.ROUTER
    )

    assert experts.options(given) == {}
    assert experts.options(routed)["num_moe_experts"] == count
    assert experts.TYPED["--num-experts"](routed) == count
    assert experts.TYPED["--moe-router-load-balancing-type"] == "aux_loss"
