"""Experts of a mixture that ranks share: the probe as the parameters of experts.

Under expert parallelism a rank has some experts, and the tokens of other ranks come to them. An
expert's parameters are therefore not reduced over all data-parallel ranks, but over those that have
the same expert; Megatron-Core keeps them in buffers of their own, with a scaling of their own. Here
each of n experts has the probe's entries of every n-th token id, and its gradient is the weights of
these tokens, from all n ranks: they are what they are without experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import Depth, Option, Unsupported

if TYPE_CHECKING:
    import torch

    from adapters.contract import Layout

SHARED = 2
"""The ranks that share experts with the option; each has one."""


def ranks_that_share(layout: Layout) -> int:
    """Megatron's expert-parallel size."""
    return SHARED if Option.EXPERT_PARALLEL in layout.options else 1


def require_step(layout: Layout, depth: Depth) -> None:
    """Raise `Unsupported` if experts would not be reduced, as below depth `step`."""
    if Option.EXPERT_PARALLEL in layout.options and depth is not Depth.STEP:
        raise Unsupported(f"no experts at depth {depth}: they are reduced in a step alone")


class Experts:
    """The experts of this rank, in a model of a configuration; they do nothing if it has all."""

    def __init__(self, config: Any) -> None:
        self._count = config.expert_model_parallel_size

    def own(self, probe: torch.nn.Parameter) -> None:
        """Make the probe a parameter of experts, which Megatron-Core reduces by itself."""
        if self._count > 1:
            probe.allreduce = False  # type: ignore[attr-defined]

    def entries(self, probe: torch.Tensor) -> torch.Tensor:
        """The entries of all tokens: each expert's, for all ranks that share experts: [capacity].

        In the backward pass an expert gets the gradients of all of these ranks. They call this in
        each forward pass, as they would dispatch tokens.
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
        # Megatron-Core reduces a copy of a gradient that is not contiguous, such as that of a sum.
        whole.register_hook(torch.Tensor.contiguous)
        return whole

    def whole(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradients of all experts, gathered from the ranks that have them: [capacity]."""
        if self._count == 1:
            return gradient
        import torch.distributed as dist
        from megatron.core import mpu

        summed = gradient.clone()
        dist.all_reduce(summed, group=mpu.get_expert_model_parallel_group())
        return summed
