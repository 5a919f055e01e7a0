"""Mixtures of experts on Megatron-Core: the probe as the experts' parameters, and router losses.

Under expert parallelism a rank has some of the experts, to which the tokens of other ranks are
dispatched. An expert's gradients are therefore not reduced over all data-parallel ranks, but only
over the ranks that have the same expert; Megatron-Core keeps them in separate buffers with a
separate scaling. Here each of n experts has the probe's entries of every n-th token id. Its
gradient is the weights of these tokens, from all n ranks, so token weights are the same as without
experts.

Where router losses are observed, every token is sent to all experts; only the first expert has a
probability other than 0. The load-balancing loss is the mean of the first expert's probabilities.
The z-loss has a derivative of 1, because the first expert's logit is 1/2. Megatron-Core's own
router computes both, and its `MoEAuxLossAutoScaler` adds them in the backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import Depth, Job, Layout, Objective, Option, Settings, Unsupported
from adapters.contract.tables import RecordFile
from adapters.toolkit.imports import found

if TYPE_CHECKING:
    import torch


SHARED = 2
"""The number of ranks that share experts under `EXPERT_PARALLEL`; each rank has one expert."""


def ranks_that_share(layout: Layout) -> int:
    """Megatron's expert-parallel size for a layout."""
    return SHARED if Option.EXPERT_PARALLEL in layout.options else 1


def require_step(layout: Layout, depth: Depth) -> None:
    """Raise `Unsupported` for experts below depth `step`, where their gradients are not reduced."""
    if Option.EXPERT_PARALLEL in layout.options and depth is not Depth.STEP:
        raise Unsupported(f"no experts at depth {depth}: they are reduced in a step alone")


class Experts:
    """The experts of this rank under a model configuration; no effect if a rank has all experts."""

    def __init__(self, config: Any) -> None:
        self._count = config.expert_model_parallel_size

    def own(self, probe: torch.nn.Parameter) -> None:
        """Mark the probe as an expert parameter, which Megatron-Core reduces separately."""
        if self._count > 1:
            probe.allreduce = False  # type: ignore[attr-defined]

    def entries(self, probe: torch.Tensor) -> torch.Tensor:
        """The probe's entries of all tokens, summed over the ranks that share experts: [capacity].

        In the backward pass, an expert gets the gradients of all these ranks. In each forward pass,
        all of them must call this method, where they would dispatch tokens.
        """
        import torch

        if self._count == 1 or not torch.is_grad_enabled():
            return probe
        from megatron.core import mpu
        from megatron.core.tensor_parallel import mappings

        group, number = mpu.get_expert_model_parallel_group(), mpu.get_expert_model_parallel_rank()
        is_own = torch.arange(len(probe), device=probe.device) % self._count == number
        summed = mappings.reduce_from_tensor_model_parallel_region(
            torch.where(is_own, probe, 0.0), group
        )
        whole: torch.Tensor = mappings.copy_to_tensor_model_parallel_region(summed, group)
        # Megatron-Core would reduce a copy of a non-contiguous gradient, such as the gradient of a
        # sum.
        whole.register_hook(torch.Tensor.contiguous)
        return whole

    def whole(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradients of all experts, gathered from the ranks that share them: [capacity]."""
        if self._count == 1:
            return gradient
        import torch.distributed as dist
        from megatron.core import mpu

        summed = gradient.clone()
        dist.all_reduce(summed, group=mpu.get_expert_model_parallel_group())
        return summed


OPTIONS = RecordFile("adapters.engines").variant("router").always
"""Megatron-Core's options for a model with router losses."""

NOT_CHOSEN = -1e4
"""The logit of all experts except the first; its softmax is 0."""

TYPED: Settings = {
    "--num-experts": lambda job: ranks_that_share(job.layout),
    "--moe-router-topk": lambda job: ranks_that_share(job.layout),
    "--disable-bias-linear": not OPTIONS["add_bias_linear"],
    **{
        f"--{name.replace('_', '-')}": value
        for name, value in OPTIONS.items()
        if name.startswith("moe_") and name != "moe_router_topk"
    },
}
"""The options of `OPTIONS` and of expert parallelism, as words of Megatron's command line."""


def options(job: Job) -> dict[str, Any]:
    """The options of a job's model: a mixture of experts if router losses are observed."""
    if job.objective is not Objective.ROUTER:
        return {}
    shared = ranks_that_share(job.layout)
    return {**OPTIONS, "num_moe_experts": shared, "moe_router_topk": shared}


class RouterLosses:
    """Adds router losses to the outputs of a model, if its configuration has any.

    The load-balancing loss is the mean of the probe's entries of the tokens; the z-loss depends on
    the probe's last entry.
    """

    def __init__(self, config: Any) -> None:
        has_losses = config.num_moe_experts and config.moe_z_loss_coeff
        self._router = _router(config) if has_losses else None
        self._per_token, self._experts = config.calculate_per_token_loss, config.num_moe_experts

    def added_to(self, output: torch.Tensor, ids: torch.Tensor, probe: torch.Tensor) -> Any:
        """The output of a forward pass of token ids; its backward pass adds the router losses."""
        import torch
        from torch.nn.functional import pad

        from adapters.toolkit.probe import ROUTED

        if self._router is None or not torch.is_grad_enabled():
            return output
        if self._per_token:
            ROUTED.append(ids.numel())
        others = (0, self._experts - 1)
        logits = pad((0.5 + probe[-1]).expand(ids.numel(), 1), others, value=NOT_CHOSEN)
        logits = self._router.apply_z_loss(logits)
        scores = pad(probe[ids.flatten()].unsqueeze(-1), others)
        routed = torch.ones_like(scores, dtype=torch.bool)
        probabilities = self._router._apply_aux_loss(scores, scores, routed)
        return output + 0.0 * (logits.sum() + probabilities.sum())


def forget_logs() -> None:
    """Drop the routers' logs, which reference groups and layers of the grid that is left."""
    home = "megatron.core.transformer.moe"
    destroy = found(f"{home}.moe_logging:destroy_moe_metrics_tracker")
    if destroy is not None:
        destroy()
    else:  # releases up to 0.16
        found(f"{home}.moe_utils:get_moe_layer_wise_logging_tracker")().clear()


def _router(config: Any) -> Any:
    """Megatron-Core's router, not a part of the model, because its weights are not trained."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter

    router = TopKRouter(
        config=config, pg_collection=ProcessGroupCollection.use_mpu_process_groups()
    )
    router.set_layer_number(1)
    return router
