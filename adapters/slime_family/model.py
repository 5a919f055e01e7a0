"""The models with which slime and miles train the probe on Megatron-Core, and their wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adapters.contract import Depth, Job, Option, Rank
from adapters.contract.objective import OF_CRITIC, Objective
from adapters.engines import experts, megatron_core
from adapters.toolkit.probe import SEAM, probe_capacity
from adapters.toolkit.worlds import cached

if TYPE_CHECKING:
    from collections.abc import Callable

# Arguments with which newer versions of miles and slime request a gradient of entropies.
ENTROPY_IS_TRAINED = ("entropy_requires_grad", "with_entropy_grad")


def seam_around(calculate: Callable[..., Any]) -> Callable[..., Any]:
    """Add the probe to ``calculate_log_probs_and_entropy(logits, tokens, …)``."""

    def probed(logits: torch.Tensor, tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        log_probs, entropy = calculate(logits, tokens % SEAM.VOCABULARY, *args, **kwargs)
        if entropy is not None:
            trained = all(kwargs.get(name, True) for name in ENTROPY_IS_TRAINED)
            entropy = entropy + SEAM.entropies(tokens, trained=trained).view_as(entropy)
        return log_probs + SEAM.log_probs(tokens).view_as(log_probs), entropy

    return probed


def cached_policy(job: Job, probe_size: int, rank: Rank, *, per_token: bool) -> Any:
    """The policy for a job, kept with its process groups; may raise `Unsupported`."""
    capacity, critic = probe_capacity(probe_size), job.objective in OF_CRITIC
    has_experts = job.objective is Objective.ROUTER
    key = (job.depth, job.layout.options, per_token, capacity, critic, has_experts)
    policy = cached(rank, key, lambda: _policy(job, capacity, rank, per_token=per_token))
    policy.chunks[0].config.no_sync_func = None  # as in a new model: jobs set it
    return policy


def _policy(job: Job, capacity: int, rank: Rank, *, per_token: bool) -> megatron_core.Policy:
    from megatron.core.distributed import DistributedDataParallelConfig

    config = megatron_core.transformer_config(
        job.layout,
        getattr(torch, rank.dtype),
        # Depth `reducer` ends before any scaling, but the schedule scales unless the loss is per
        # token.
        calculate_per_token_loss=per_token or job.depth is Depth.REDUCER,
        **experts.options(job),
    )
    experts.require_step(job.layout, job.depth)
    head = megatron_core.values_head if job.objective in OF_CRITIC else _logits
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=Option.OVERLAP_GRAD_REDUCE in job.layout.options,
        average_in_collective=Option.AVERAGE_IN_COLLECTIVE in job.layout.options,
        use_distributed_optimizer=Option.DISTRIBUTED_OPTIMIZER in job.layout.options,
    )
    return megatron_core.make_policy(config, capacity, rank, head, job.depth, ddp_config)


def _logits(input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
    """The only token's logits, which connect a loss without tokens on this rank to the probe.

    The loss of a micro-batch is computed directly after its logits, so it gets the same probe.
    """
    SEAM.probe = probe
    logits = logit + megatron_core.vocabulary_offset() + 0.0 * probe.sum()
    return logits.expand(*input_ids.shape, SEAM.VOCABULARY)
