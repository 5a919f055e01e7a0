"""Megatron-Core: models with the probe, and readers of the probe's gradient at each depth.

Megatron's pipeline schedules, `DistributedDataParallel` and `finalize_model_grads` run as they are,
on the CPU too. The optimizer is replaced by one that reads the gradient. In a pipeline every stage
has its own probe. Activations carry the token ids, which reveal a schedule that mixes up
micro-batches. They also carry the sums of the entries of all probes so far, which the last stage
adds to the log-probabilities. So the gradient of every probe is the token weights if the backward
passes, the reductions and the final division of each stage are right.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from adapters.contract import Depth, Layout, Option, Rank, Unsupported
from adapters.engines.experts import Experts, RouterLosses, forget_logs, ranks_that_share
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.calls import nothing
from adapters.toolkit.probe import ForwardPasses, Records, as_array, selected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reference.arrays import Gradient

IMPOSSIBLE_LOGIT = -1e4  # logit of a token whose probability is exactly 0
GRID = "grid"  # key of a rank's cache: the sizes of Megatron's process groups
WRAPPED: list[Any] = []
"""This process's models in data parallelism, all in the current grid of process groups."""


def enter_grid(layout: Layout, rank: Rank) -> bool:
    """Leave the process groups of another grid; return whether the grid has changed."""
    grid = layout.tp, layout.cp, layout.pp, chunks_per_stage(layout), ranks_that_share(layout)
    if rank.cache.get(GRID) == grid:
        return False
    rank.cache.clear()
    leave_grid()
    rank.cache[GRID] = grid
    return True


def join_grid(layout: Layout, rank: Rank) -> None:
    """Make Megatron's process groups for a layout, unless this world has them."""
    from megatron.core import mpu

    if enter_grid(layout, rank):
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            context_parallel_size=layout.cp,
            pipeline_model_parallel_size=layout.pp,
            virtual_pipeline_model_parallel_size=chunks_per_stage(layout),
            expert_model_parallel_size=ranks_that_share(layout),
        )


def leave_grid() -> None:
    """End Megatron's process groups, if there are any: each keeps threads that poll its sockets.

    A group is freed only with the last model of its grid, so all models are cleared. A model and
    its optimizer reference autograd nodes, whose hooks reference the model: a reference cycle that
    Python's garbage collector cannot see.
    """
    from megatron.core import mpu

    while WRAPPED:
        vars(WRAPPED.pop()).clear()
    if not mpu.model_parallel_is_initialized():
        return
    forget_logs()
    groups = {*(mpu._global_process_group_list or [])} - {None}  # None stands for the whole world
    while groups:
        dist.destroy_process_group(groups.pop())
    mpu.destroy_model_parallel()
    gc.collect()


def chunks_per_stage(layout: Layout) -> int | None:
    """Megatron's virtual pipeline size, None if the schedule is not interleaved."""
    return 2 if Option.INTERLEAVED in layout.options else None


class Policy:
    """The chunks of a model in data parallelism, whose gradients are reduced and finalised.

    A rank has one chunk, or several if the schedule is interleaved; the last chunk is observed.

    The schedule calls ``finalize_model_grads`` after the last micro-batch. In a `BarePolicy`, this
    function does not finalise gradients: it only records in ``counted_tokens`` the tokens that were
    counted on this rank in each step.
    """

    def __init__(self, chunks: list[Any], bare: list[Any]) -> None:
        from megatron.core.distributed import finalize_model_grads

        self.chunks = chunks
        self.probe: nn.Parameter = bare[-1].probe
        self.passes: ForwardPasses = bare[-1].passes
        self.experts: Experts = bare[-1].experts
        self.counted_tokens = Records[float]()
        self.finalize_model_grads: Callable[..., None] = finalize_model_grads

    def gradient(self) -> Gradient:
        """The probe's gradient as the optimizer gets it: [capacity]."""
        return as_array(self.experts.whole(self.probe.main_grad))  # type: ignore[attr-defined]


class ShardedPolicy(Policy):
    """A policy under the distributed optimizer: a rank's gradient is final only in its shard."""

    def gradient(self) -> Gradient:
        """The probe's gradient, gathered from the shards of all ranks."""
        from megatron.core import mpu

        group = mpu.get_data_parallel_group(with_context_parallel=True)
        buffers = (buffer for chunk in self.chunks for buffer in chunk.buffers)
        for bucket in (bucket for buffer in buffers for bucket in buffer.buckets):
            shards = bucket.grad_data.chunk(group.size())
            mine = shards[group.rank()].clone()
            torch.distributed.all_gather_into_tensor(bucket.grad_data, mine, group=group)
        return super().gradient()


class BarePolicy(Policy):
    """A policy without data parallelism: gradients are not reduced and not finalised."""

    def __init__(self, bare: list[Any]) -> None:
        super().__init__(bare, bare)
        self.finalize_model_grads = self._count_tokens

    def _count_tokens(self, model: Any, num_tokens: Any = None, **kwargs: Any) -> None:
        self.counted_tokens.append(0.0 if num_tokens is None else float(num_tokens))

    def gradient(self) -> Gradient:
        """This rank's own gradient, 0 if none of its micro-batches reached the probe."""
        grad = self.probe.grad
        return as_array(torch.zeros_like(self.probe) if grad is None else grad)


def make_policy(
    config: Any, capacity: int, rank: Rank, head: Callable[..., Any], depth: Depth, ddp_config: Any
) -> Policy:
    """The policy of a new `probed_model`, bare below depth `step`; may raise `Unsupported`."""
    bare = probed_model(config, capacity, rank, head)
    if depth is not Depth.STEP:
        return BarePolicy(bare)
    from megatron.core.distributed import DistributedDataParallel

    reduce_one_by_one_over_gloo(rank)
    try:
        with cuda_on_cpu.redirected():
            wrapped = [
                DistributedDataParallel(
                    chunk.config, ddp_config, chunk, disable_bucketing=chunk is not bare[0]
                )
                for chunk in bare
            ]
    except AssertionError as error:
        if not ddp_config.average_in_collective:
            raise
        raise Unsupported(f"Megatron-Core: {error}") from error
    return wrapped_policy(wrapped, bare)


def wrapped_policy(wrapped: list[Any], bare: list[Any]) -> Policy:
    """The policy of a model's chunks, bare and in data parallelism, valid until `leave_grid`."""
    WRAPPED.extend(wrapped)
    sharded = wrapped[0].ddp_config.use_distributed_optimizer
    return (ShardedPolicy if sharded else Policy)(wrapped, bare)


def transformer_config(layout: Layout, dtype: torch.dtype, **options: Any) -> Any:
    """Megatron's configuration of a small model, whose rows may differ in length.

    With an interleaved schedule, communication is overlapped, as Megatron's own validation of
    options requires.
    """
    from megatron.core.transformer.transformer_config import TransformerConfig

    chunks, shared = chunks_per_stage(layout), ranks_that_share(layout)
    of_experts = {"num_moe_experts": shared, "add_bias_linear": False} if shared > 1 else {}
    return TransformerConfig(
        num_layers=layout.pp * (chunks or 1),
        hidden_size=8,
        num_attention_heads=2,
        tensor_model_parallel_size=layout.tp,
        context_parallel_size=layout.cp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=chunks,
        overlap_p2p_comm=chunks is not None,
        batch_p2p_comm=chunks is None,
        variable_seq_lengths=True,
        # the default dispatcher does not support rows of different lengths
        moe_token_dispatcher_type="alltoall",
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        expert_model_parallel_size=shared,
        **of_experts | options,
    )


def reduce_one_by_one_over_gloo(rank: Rank) -> None:
    """Reduce Megatron's buckets one by one, as gloo coalesces only collectives of CPU tensors."""
    if rank.device != "cpu" and "nccl" not in torch.distributed.get_backend_config():
        from megatron.core.distributed import param_and_grad_buffer

        param_and_grad_buffer._coalescing_manager = one_by_one


@contextmanager
def one_by_one(group: Any, async_ops: bool = False) -> Iterator[None]:
    """Run collectives one by one; raise `Unsupported` if the caller would have to await them."""
    if async_ops:
        raise Unsupported("no overlap of gradient reduction with gloo on CUDA tensors")
    yield


def vocabulary_offset() -> float:
    """The number to add to logits, so that only the first tensor-parallel rank has the token."""
    from megatron.core import mpu

    return 0.0 if mpu.get_tensor_model_parallel_rank() == 0 else IMPOSSIBLE_LOGIT


def probed_model(config: Any, capacity: int, rank: Rank, head: Callable[..., Any]) -> list[Any]:
    """This rank's chunks of a model that replaces Megatron's GPT model.

    The vocabulary is split over the tp ranks. ``head(ids, probe, zero)`` returns the outputs; probe
    and zero, a parameter, are float32, as in Megatron's `Float16Module`.
    """
    from megatron.core import mpu
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedChunk(MegatronModule):
        def __init__(self, number: int, of_all: int, vp_stage: int | None) -> None:
            super().__init__(config)
            self.vp_stage, self.number = vp_stage, number
            self.share_embeddings_and_output_weights = True
            self.model_type = ModelType.encoder_or_decoder
            self.pre_process, self.post_process = number == 0, number == of_all - 1
            self.logit = nn.Parameter(torch.zeros(1))
            self.probe = nn.Parameter(torch.zeros(capacity))
            self.passes = ForwardPasses()
            self.router, self.experts = RouterLosses(config), Experts(config)
            self.experts.own(self.probe)
            self.received: Any = None
            self.replaying: Any = None  # a router whose choice of experts is replayed

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Take the activations of the previous stage; None on the first stage."""
            [self.received] = input_tensor if isinstance(input_tensor, list) else [input_tensor]

        def shared_embedding_or_output_weight(self) -> torch.Tensor:
            """The parameter that first and last stage share, like tied embeddings."""
            return self.logit

        def zero_grad_buffer(self) -> None:
            """Zero gradients, as `DistributedDataParallel` does when a framework asks for it."""
            self.zero_grad()

        def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            ids, probe = input_ids, self.experts.entries(selected(self.probe.float()))
            if not self.pre_process:
                ids = ids_of(self.received)
                probe = probe + probe_of(self.received, ids, capacity)
            self.passes.note(ids)
            if self.replaying is not None:
                ids, probe = self.replaying(ids, probe)
            if not self.post_process:
                handed_on = activations(ids, probe, config.hidden_size).to(self.logit.dtype)
                return handed_on + self.logit
            output: torch.Tensor = head(ids, probe, self.logit.float())
            return self.router.added_to(output, ids, probe)

    stage = mpu.get_pipeline_model_parallel_rank()
    chunks = config.virtual_pipeline_model_parallel_size or 1  # the number of chunks of each rank
    stages = config.pipeline_model_parallel_size
    return [
        ProbedChunk(stage + chunk * stages, stages * chunks, chunk if chunks > 1 else None).to(
            rank.device, getattr(torch, rank.dtype)
        )
        for chunk in range(chunks)
    ]


def values_head(input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
    """A critic's values: the probe's entries of the predicted tokens, [*input_ids, 1]."""
    return logit + probe[(input_ids + 1) % len(probe)].unsqueeze(-1)


DIGITS = torch.tensor([1, 256, 65_536])
"""Place values of token ids in activations: each digit to base 256 is exact in bfloat16."""


def activations(ids: torch.Tensor, probe: torch.Tensor, width: int) -> torch.Tensor:
    """The activations that a stage hands to the next for ids [rows, tokens]: [tokens, rows, width].

    Each position holds its token id, and the probe's entry of the token that it predicts.
    """
    digits = ids.unsqueeze(-1) // DIGITS.to(ids.device) % 256
    entries = probe[(ids + 1) % len(probe)].unsqueeze(-1)
    columns = torch.cat([entries, digits.to(probe.dtype)], dim=-1).transpose(0, 1)
    return nn.functional.pad(columns, (0, width - columns.shape[-1]))


def ids_of(received: torch.Tensor) -> torch.Tensor:
    """The token ids in activations, [rows, tokens]."""
    digits = received.detach()[..., 1 : len(DIGITS) + 1].long()
    return (digits * DIGITS.to(received.device)).sum(-1).T.contiguous()


def probe_of(received: torch.Tensor, ids: torch.Tensor, capacity: int) -> torch.Tensor:
    """The entries of earlier stages' probes, from activations; 0 for absent tokens: [capacity].

    If a framework repeats rows in a micro-batch, only one of the copies is read.
    """
    predicted = ((ids + 1) % capacity).flatten()
    position = torch.full((capacity,), -1, device=ids.device)
    position[predicted] = torch.arange(len(predicted), device=ids.device)
    entries = received[..., 0].T.flatten().float()
    return torch.where(position < 0, 0.0, entries[position.clamp(min=0)])


class ReadingOptimizer:
    """An optimizer that records the probe's gradients, each [capacity], and reports success."""

    param_groups: tuple[Any, ...] = ({"lr": 0.0},)

    def __init__(self, policy: Policy) -> None:
        self.gradients = Records["Gradient"]()
        self._policy = policy

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss unscaled, as in full precision."""
        return loss

    zero_grad = staticmethod(nothing)  # the framework itself zeroes the model's buffers

    def step(self) -> tuple[bool, float, int]:
        """Read the gradient; return success, gradient norm and number of zeros."""
        self.gradients.append(self._policy.gradient())
        return True, 0.0, 0


def gradients_of_steps(optimizer: Any, policy: Policy) -> Records[Gradient]:
    """Records the probe's gradient, [capacity], before each step of Megatron's optimizer."""
    gradients, step = Records["Gradient"](), optimizer.step

    def read_and_step() -> Any:
        gradients.append(policy.gradient())
        for chunk in policy.chunks:
            chunk.zero_grad_buffer()  # NaN would spoil the probe even at a learning rate of 0
        return step()

    optimizer.step = read_and_step
    return gradients


def scheduler() -> Any:
    """A learning-rate schedule whose rate is 0."""
    return SimpleNamespace(step=lambda increment: None, get_lr=lambda group: 0.0)
