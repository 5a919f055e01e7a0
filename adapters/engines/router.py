"""The losses that Megatron-Core's router of a mixture of experts adds to a model by itself.

A model with one expert sends every token there, so that the load-balancing loss is the mean of the
tokens' probabilities, and the z-loss has a derivative of 1 where logits are 1/2. Megatron-Core's
own router computes both, and its `MoEAuxLossAutoScaler` adds them in the backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.objective import ROUTER_COEFFICIENT, Z_COEFFICIENT, Objective

if TYPE_CHECKING:
    import torch

    from adapters.contract import Job

OPTIONS: dict[str, Any] = {
    "num_moe_experts": 1,
    "moe_router_topk": 1,
    "moe_router_pre_softmax": True,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": ROUTER_COEFFICIENT,
    "moe_z_loss_coeff": Z_COEFFICIENT,
    "add_bias_linear": False,
}
"""Megatron-Core's options of a model whose router has losses."""


def options(job: Job) -> dict[str, Any]:
    """The options of a job's model: those of a mixture of experts if its losses are looked at."""
    return OPTIONS if job.objective is Objective.ROUTER else {}


class RouterLosses:
    """Adds the losses of a router to the outputs of a model of the configuration, if it has any.

    The load-balancing loss is the mean of the probe's entries of tokens, the z-loss has its last
    entry.
    """

    def __init__(self, config: Any) -> None:
        self._router = _router(config) if config.num_moe_experts else None
        self._per_token = config.calculate_per_token_loss

    def added_to(self, output: torch.Tensor, ids: torch.Tensor, probe: torch.Tensor) -> Any:
        """The output of a forward pass of some token ids, whose backward pass adds the losses."""
        import torch

        from adapters.toolkit.probe import ROUTED

        if self._router is None or not torch.is_grad_enabled():
            return output
        if self._per_token:
            ROUTED.append(ids.numel())
        logits = (0.5 + probe[-1]).expand(ids.numel(), 1)
        logits = self._router.apply_z_loss(logits)
        scores = probe[ids.flatten()].unsqueeze(-1)
        routed = torch.ones_like(scores, dtype=torch.bool)
        probabilities = self._router._apply_aux_loss(scores, scores, routed)
        return output + 0.0 * (logits.sum() + probabilities.sum())


def _router(config: Any) -> Any:
    """Megatron-Core's router, apart from the model, as its weights are not trained."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter

    router = TopKRouter(
        config=config, pg_collection=ProcessGroupCollection.use_mpu_process_groups()
    )
    router.set_layer_number(1)
    return router
