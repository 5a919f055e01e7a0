"""Megatron-Core: models that carry the probe, and how its gradient is read at each depth.

Megatron's pipeline schedule, `DistributedDataParallel` and `finalize_model_grads` run as they are,
on the CPU too. The optimizer is replaced by one that reads the gradient.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from adapters.contract import Depth, Layout, Option, Rank, Unsupported
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import ForwardPasses, Recorder, as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

OPTIONS = frozenset(
    {Option.AVERAGE_IN_COLLECTIVE, Option.DISTRIBUTED_OPTIMIZER, Option.OVERLAP_GRAD_REDUCE}
)
"""Options of Megatron's own data parallelism."""

IMPOSSIBLE_LOGIT = -1e4  # logit of a token whose probability is exactly 0
GRID = "grid"  # key of a rank's cache: the sizes of Megatron's process groups


def enter_grid(layout: Layout, rank: Rank) -> bool:
    """Leave process groups of other sizes and what depends on them; returns whether it did."""
    grid = layout.tp, layout.cp
    if rank.cache.get(GRID) == grid:
        return False
    leave_grid()
    rank.cache.clear()
    rank.cache[GRID] = grid
    return True


def join_grid(layout: Layout, rank: Rank) -> None:
    """Give this world Megatron's process groups for a layout, unless it has them."""
    from megatron.core import mpu

    if enter_grid(layout, rank):
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp, context_parallel_size=layout.cp
        )


def leave_grid() -> None:
    """Forget Megatron's process groups, if there are any."""
    from megatron.core import mpu

    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()


class Policy:
    """A model in data parallelism, whose gradients are reduced and final.

    The schedule calls ``finalize_model_grads`` after the last micro-batch. If gradients are not
    finalised, ``counted_tokens`` records the tokens counted on this rank in each step.
    """

    def __init__(self, model: Any, bare: Any) -> None:
        from megatron.core.distributed import finalize_model_grads

        self.model = model
        self.probe: nn.Parameter = bare.probe
        self.passes: ForwardPasses = bare.passes
        self.counted_tokens = Recorder[float]()
        self.finalize_model_grads: Callable[..., None] = finalize_model_grads

    def gradient(self) -> NDArray[np.float32]:
        """The probe's gradient, as an optimizer would find it: [capacity]."""
        return as_array(self.probe.main_grad)  # type: ignore[attr-defined]


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

    def __init__(self, bare: Any) -> None:
        super().__init__(bare, bare)
        self.finalize_model_grads = self._count_tokens

    def _count_tokens(self, model: Any, num_tokens: Any = None, **kwargs: Any) -> None:
        self.counted_tokens.append(0.0 if num_tokens is None else float(num_tokens))

    def gradient(self) -> NDArray[np.float32]:
        """This rank's own gradient, 0 if none of its micro-batches reached the probe."""
        grad = self.probe.grad
        return as_array(torch.zeros_like(self.probe) if grad is None else grad)


def policy_of(bare: Any, rank: Rank, depth: Depth, ddp_config: Any) -> Policy:
    """A probed model, bare below depth `step`; raises `Unsupported` if Megatron refuses."""
    if depth is not Depth.STEP:
        return BarePolicy(bare)
    from megatron.core.distributed import DistributedDataParallel

    reduce_one_by_one_over_gloo(rank)
    try:
        with cuda_on_cpu.redirected():
            wrapped = DistributedDataParallel(bare.config, ddp_config, bare)
    except AssertionError as error:
        if not ddp_config.average_in_collective:
            raise
        raise Unsupported(f"Megatron-Core: {error}") from error
    return (ShardedPolicy if ddp_config.use_distributed_optimizer else Policy)(wrapped, bare)


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


def reduce_one_by_one_over_gloo(rank: Rank) -> None:
    """Reduce Megatron's buckets one by one: gloo coalesces collectives of CPU tensors only."""
    if rank.device != "cpu" and "nccl" not in torch.distributed.get_backend_config():
        from megatron.core.distributed import param_and_grad_buffer

        param_and_grad_buffer._coalescing_manager = one_by_one


@contextmanager
def one_by_one(group: Any, async_ops: bool = False) -> Iterator[None]:
    """Coalesce no collectives; raises `Unsupported` for asynchronous ones, which nobody awaits."""
    if async_ops:
        raise Unsupported("no overlap of gradient reduction with gloo on CUDA tensors")
    yield


def vocabulary_offset() -> float:
    """The number to add to logits, so that the first tensor-parallel rank alone has the token."""
    from megatron.core import mpu

    return 0.0 if mpu.get_tensor_model_parallel_rank() == 0 else IMPOSSIBLE_LOGIT


def probed_model(config: Any, capacity: int, rank: Rank, head: Callable[..., Any]) -> Any:
    """A model in place of Megatron's GPT model, with its vocabulary split over the tp ranks.

    ``head`` makes outputs of token ids, the probe and a parameter that is 0, both in float32, as
    Megatron's own wrapper of narrower models makes them.
    """
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedModel(MegatronModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.logit = nn.Parameter(torch.zeros(1))
            self.probe = nn.Parameter(torch.zeros(capacity))
            self.passes = ForwardPasses()

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Do nothing: there is no pipeline parallelism."""

        def zero_grad_buffer(self) -> None:
            """Zero gradients, as `DistributedDataParallel` does when a framework asks for it."""
            self.zero_grad()

        def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            self.passes.note(input_ids)
            output: torch.Tensor = head(input_ids, self.probe.float(), self.logit.float())
            return output

    return ProbedModel().to(rank.device, getattr(torch, rank.dtype))


class ReadingOptimizer:
    """An optimizer that records the probe's gradients, each [capacity], and reports success."""

    param_groups: tuple[Any, ...] = ({"lr": 0.0},)

    def __init__(self, policy: Policy) -> None:
        self.gradients = Recorder["NDArray[np.float32]"]()
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
    """A learning-rate schedule whose rate is 0."""
    return SimpleNamespace(step=lambda increment: None, get_lr=lambda group: 0.0)
