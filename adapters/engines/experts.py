"""Expert parallelism in a mixture of experts: the probe as the experts' parameters.

Under expert parallelism a rank has some of the experts, to which the tokens of other ranks are
dispatched. An expert's gradients are therefore not reduced over all data-parallel ranks, but only
over the ranks that have the same expert; Megatron-Core keeps them in separate buffers with a
separate scaling. Here each of n experts has the probe's entries of every n-th token id. Its
gradient is the weights of these tokens, from all n ranks, so token weights are the same as without
experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import Depth, Layout, Option, Unsupported

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
