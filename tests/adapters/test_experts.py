"""Experts that ranks share, and the losses of their router, without a framework."""

from types import SimpleNamespace

import pytest
import torch

from adapters.contract import Depth, Layout, Option, Unsupported
from adapters.contract.objective import Objective
from adapters.engines import experts, router
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

    assert router.options(given) == {}
    assert router.options(routed)["num_moe_experts"] == count
    assert router.TYPED["--num-experts"](routed) == count
    assert router.TYPED["--moe-router-load-balancing-type"] == "aux_loss"
