"""A policy in Megatron-Core, trained by a framework and watched by us.

Megatron's pipeline schedule, `DistributedDataParallel` and `finalize_model_grads` run as they are,
on the CPU too. We supply a model that carries the probe, a seam that adds the probe to the
framework's log-probabilities, and an optimizer that reads the gradient instead of applying it.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from adapters.contract import Depth, Job, Layout, Option, Rank, Unsupported
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ENTROPIES
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import FORWARD_PASSES, as_array, cycled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

OPTIONS = frozenset(
    {Option.AVERAGE_IN_COLLECTIVE, Option.DISTRIBUTED_OPTIMIZER, Option.OVERLAP_GRAD_REDUCE}
)
"""Options of Megatron's own data parallelism."""

IMPOSSIBLE_LOGIT = -1e4
"""Logit of a token whose probability is exactly 0."""

ENTROPY_IS_TRAINED = ("entropy_requires_grad", "with_entropy_grad")
"""Arguments by which newer versions of miles and slime ask for a gradient of entropies."""


class ProbeSeam:
    """Adds the probe to the log-probabilities and entropies that a framework computes.

    The policy has a vocabulary of one token, hence log-probabilities and entropies of 0. Entropies
    also get the values of `ENTROPIES`.
    """

    VOCABULARY = 1

    def __init__(self) -> None:
        self.probe: torch.Tensor | None = None

    def around(self, calculate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``calculate_log_probs_and_entropy(logits, tokens, …)``."""

        def with_probe(
            logits: torch.Tensor, tokens: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            log_probs, entropy = calculate(logits, tokens % self.VOCABULARY, *args, **kwargs)
            assert self.probe is not None
            probe = self.probe.float()[tokens]
            if entropy is not None:
                trained = all(kwargs.get(name, True) for name in ENTROPY_IS_TRAINED)
                added = cycled(ENTROPIES, tokens) + (probe if trained else probe.detach())
                entropy = entropy + added.view_as(entropy)
            return log_probs + probe.view_as(log_probs), entropy

        return with_probe


def join_grid(layout: Layout, cache: dict[Any, Any]) -> None:
    """Give this world Megatron's process groups for a layout.

    ``cache`` is the rank's, so that the groups last as long as the world and the layout.
    """
    from megatron.core import mpu

    grid = layout.tp, layout.cp
    if cache.get("grid") == grid:
        return
    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp, context_parallel_size=layout.cp
    )
    cache.clear()
    cache["grid"] = grid


class Policy:
    """The model of a job, and how the probe's gradient is read at the job's depth."""

    def __init__(self, model: Any, probe: nn.Parameter) -> None:
        self.model = model
        self.probe = probe

    @property
    def finalize_model_grads(self) -> Callable[..., None]:
        """The function that the schedule calls after the last micro-batch."""
        from megatron.core.distributed import finalize_model_grads

        return finalize_model_grads

    def drain_counted_tokens(self) -> tuple[float, ...]:
        """Return the tokens counted on this rank in each step, if gradients are not finalised."""
        return ()

    def gradient(self) -> NDArray[np.float32]:
        """The probe's gradient, as an optimizer would find it: [capacity]."""
        return as_array(self.probe.main_grad)


class ShardedPolicy(Policy):
    """A policy under the distributed optimizer: a rank's gradient is final in its shard alone."""

    def gradient(self) -> NDArray[np.float32]:
        """The probe's gradient, gathered from the shards of all ranks."""
        from megatron.core import mpu

        group = mpu.get_data_parallel_group(with_context_parallel=True)
        for buffer in self.model.buffers:
            for bucket in buffer.buckets:
                shards = bucket.grad_data.chunk(group.size())
                mine = shards[group.rank()].clone()
                torch.distributed.all_gather_into_tensor(bucket.grad_data, mine, group=group)
        return super().gradient()


class BarePolicy(Policy):
    """A policy without data parallelism: gradients are not reduced and not finalised."""

    def __init__(self, model: Any, probe: nn.Parameter) -> None:
        super().__init__(model, probe)
        self._counted: list[float] = []

    @property
    def finalize_model_grads(self) -> Callable[..., None]:
        """Notes the tokens counted."""

        def note(model: Any, num_tokens: Any = None, **kwargs: Any) -> None:
            self._counted.append(0.0 if num_tokens is None else float(num_tokens))

        return note

    def drain_counted_tokens(self) -> tuple[float, ...]:
        """Return the tokens noted since the last call."""
        counted = tuple(self._counted)
        self._counted.clear()
        return counted

    def gradient(self) -> NDArray[np.float32]:
        """This rank's own gradient, 0 if none of its micro-batches reached the probe."""
        grad = self.probe.grad
        return as_array(torch.zeros_like(self.probe) if grad is None else grad)


def cached_policy(job: Job, probe_size: int, rank: Rank, *, calculate_per_token_loss: bool) -> Any:
    """The policy for a job, kept as long as the rank's process groups.

    Raises:
        Unsupported: Megatron refuses to train so.
    """
    capacity = 1 << probe_size.bit_length()
    critic = job.objective is Objective.VALUE
    key = (job.depth, job.layout.options, calculate_per_token_loss, capacity, critic)
    if key not in rank.cache:
        rank.cache[key] = _build(job, capacity, rank, calculate_per_token_loss)
    policy = rank.cache[key]
    policy.drain_counted_tokens()
    FORWARD_PASSES.drain()
    policy.model.config.no_sync_func = None  # as a framework finds it in a new model
    return policy


def transformer_config(layout: Layout, dtype: torch.dtype, **options: Any) -> Any:
    """Megatron's configuration of a small model."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        tensor_model_parallel_size=layout.tp,
        context_parallel_size=layout.cp,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        **options,
    )


def _build(job: Job, capacity: int, rank: Rank, calculate_per_token_loss: bool) -> Policy:
    dtype = getattr(torch, rank.dtype)
    # Depth `reducer` ends before any scaling, and only per token does the schedule do none.
    per_token = calculate_per_token_loss or job.depth is Depth.REDUCER
    config = transformer_config(job.layout, dtype, calculate_per_token_loss=per_token)
    bare = _probed_model(config, capacity, critic=job.objective is Objective.VALUE)
    bare.to(rank.device, dtype)
    if job.depth is not Depth.STEP:
        return BarePolicy(bare, bare.probe)
    reduce_one_by_one_over_gloo(rank)
    try:
        wrapped = _data_parallel(config, bare, job.layout.options)
    except AssertionError as error:
        raise Unsupported(f"Megatron-Core: {error}") from error
    sharded = Option.DISTRIBUTED_OPTIMIZER in job.layout.options
    return (ShardedPolicy if sharded else Policy)(wrapped, bare.probe)


def reduce_one_by_one_over_gloo(rank: Rank) -> None:
    """Let Megatron reduce its buckets one by one if gloo is used with a GPU.

    Megatron coalesces them into one collective, which gloo has for CPU tensors only.
    """
    if rank.device != "cpu" and "nccl" not in torch.distributed.get_backend_config():
        from megatron.core.distributed import param_and_grad_buffer

        param_and_grad_buffer._coalescing_manager = one_by_one


@contextmanager
def one_by_one(group: Any, async_ops: bool = False) -> Iterator[None]:
    """Replace torch's manager of coalesced collectives by one that coalesces none.

    Raises:
        Unsupported: nothing would wait for asynchronous collectives.
    """
    if async_ops:
        raise Unsupported("no overlap of gradient reduction with gloo on CUDA tensors")
    yield


def _data_parallel(config: Any, model: nn.Module, options: tuple[Option, ...]) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    with cuda_on_cpu.redirected():
        return DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=Option.OVERLAP_GRAD_REDUCE in options,
                average_in_collective=Option.AVERAGE_IN_COLLECTIVE in options,
                use_distributed_optimizer=Option.DISTRIBUTED_OPTIMIZER in options,
            ),
            model,
        )


def _probed_model(config: Any, capacity: int, *, critic: bool) -> Any:
    from megatron.core import mpu
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedModel(MegatronModule):  # type: ignore[misc]
        """Replaces Megatron's GPT model, with its vocabulary split over the tp ranks.

        A critic's value of a token is the probe's entry, at the position that predicts the token.
        Outputs are in float32, as Megatron's own wrapper of narrower models makes them.
        """

        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.logit = nn.Parameter(torch.zeros(1))
            self.probe = nn.Parameter(torch.zeros(capacity))
            first = mpu.get_tensor_model_parallel_rank() == 0
            self.offset = 0.0 if first else IMPOSSIBLE_LOGIT

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Do nothing: there is no pipeline parallelism."""

        def zero_grad_buffer(self) -> None:
            """Zero gradients, as `DistributedDataParallel` does when a framework asks for it."""
            self.zero_grad()

        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            FORWARD_PASSES.note(input_ids)
            logits = self.logit.float().expand(*input_ids.shape, ProbeSeam.VOCABULARY)
            if critic:
                return logits + self.probe.float()[(input_ids + 1) % capacity].unsqueeze(-1)
            # A loss that has no token on this rank reaches all parameters through the logits.
            return logits + self.offset + 0.0 * self.probe.sum()

    return ProbedModel()


class ReadingOptimizer:
    """An optimizer that keeps the probe's gradient and reports success."""

    param_groups: tuple[Any, ...] = ()

    def __init__(self, policy: Policy) -> None:
        self.gradients: list[NDArray[np.float32]] = []
        self._policy = policy

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss: in full precision it is not scaled."""
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the framework zeroes the model's buffers."""

    def step(self) -> tuple[bool, float, int]:
        """Read the gradient; return success, gradient norm and number of zeros."""
        self.gradients.append(self._policy.gradient())
        return True, 0.0, 0


def scheduler() -> Any:
    """A learning-rate schedule without a learning rate."""
    return SimpleNamespace(step=lambda increment: None)
