"""Megatron-Core on the CPU: what every adapter of a framework that trains with it needs.

Its pipeline schedule, `DistributedDataParallel` and `finalize_model_grads` run as they are. Ours
are a model that carries the probe, a seam behind the framework's log-probabilities where the probe
is added, and an optimizer that reads the gradient instead of applying it.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from adapters import cuda_on_cpu
from adapters.contract import Unsupported
from adapters.imports import stand_in, stand_in_for
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from adapters.contract import Job, Layout, Rank
    from adapters.probe import ProbedBatch

SERVER_PACKAGES = (
    "aiohttp",
    "blake3",
    "fastapi",
    "megatron.training",
    "mooncake",
    "openai",
    "polars",
    "pylatexenc",
    "qwen_vl_utils",
    "ring_flash_attn",
    "sglang",
    "sglang_router",
    "starlette",
    "structlog",
    "tensorboard",
    "torch_memory_saver",
    "uvicorn",
    "wandb",
    "zmq",
)
"""Servers, trackers and GPU kernels that frameworks import and a training step never enters."""

STOOD_IN: list[str] = []
"""What `install` stood in for in this process."""


def install(plugins: Sequence[str], kernels: Sequence[str]) -> None:
    """Prepare this process for importing Megatron-Core and a framework that trains with it.

    ``plugins`` are further packages to stand in for if missing; ``kernels`` are modules of the
    framework itself that hold nothing but GPU kernels, stood in for anyway.
    """
    cuda_on_cpu.install()
    stand_in_for(kernels)
    STOOD_IN.extend([*stand_in([*SERVER_PACKAGES, *plugins]), *kernels])


def drop_server_options(*modules: ModuleType) -> None:
    """Add none of sglang's own options to a framework's parser: no train step reads them."""
    for module in modules:
        for name in ("RouterArgs", "ServerArgs"):
            options = getattr(module, name, None)
            if options is not None:
                options.add_cli_args = staticmethod(lambda *args, **kwargs: None)


def base_parser() -> argparse.ArgumentParser:
    """Megatron's own command-line options that frameworks build on, with Megatron's defaults.

    `megatron.training`, where they are defined, is not in the megatron-core distribution.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    for flag in ("calculate-per-token-loss", "overlap-grad-reduce"):
        parser.add_argument(f"--{flag}", action="store_true")
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--decoder-seq-length", type=int)
    parser.set_defaults(check_for_nan_in_loss_and_grad=True, bf16=False, fp16=False)
    return parser


class ProbeSeam:
    """Adds the probe to log-probabilities, where a framework computes them from logits and tokens.

    The policy has a vocabulary of one token, hence log-probabilities of exactly 0.
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
            return log_probs + self.probe[tokens].view_as(log_probs), entropy

        return with_probe


def build_model(
    capacity: int, *, calculate_per_token_loss: bool, context_parallel_size: int
) -> Any:
    """A policy with a probe of so many entries, in Megatron-Core's `DistributedDataParallel`."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        calculate_per_token_loss=calculate_per_token_loss,
        context_parallel_size=context_parallel_size,
        pipeline_dtype=torch.float32,
    )
    config.finalize_model_grads_func = finalize_model_grads
    with cuda_on_cpu.redirected():
        return DistributedDataParallel(
            config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True),
            _probed_policy(config, capacity),
        )


def _probed_policy(config: Any, capacity: int) -> nn.Module:
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedPolicy(MegatronModule):  # type: ignore[misc]
        """Stands where Megatron expects a GPT model."""

        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.logit = nn.Parameter(torch.zeros(1))
            self.probe = nn.Parameter(torch.zeros(capacity))

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Of pipeline parallelism, which there is none of."""

        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            return self.logit.expand(*input_ids.shape, ProbeSeam.VOCABULARY)

    return ProbedPolicy()


class ReadingOptimizer:
    """Keeps the probe's gradient as an optimizer would find it, and reports success."""

    def __init__(self, model: Any) -> None:
        self.gradients: list[NDArray[np.float32]] = []
        self._probe = model.module.probe

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The model's buffers are zeroed by the framework."""

    def step(self) -> tuple[bool, float, int]:
        """Megatron's answer: success, gradient norm, number of zeros."""
        self.gradients.append(self._probe.main_grad.detach().cpu().numpy().copy())
        return True, 0.0, 0


def scheduler() -> Any:
    """A learning-rate schedule without a learning rate."""
    return SimpleNamespace(step=lambda increment: None)


def join_grid(cp: int, cache: dict[Any, Any]) -> None:
    """Give this world Megatron's process groups for so much context parallelism.

    ``cache`` is the rank's, so that the groups last as long as the world and the layout.
    """
    from megatron.core import mpu

    if cache.get("grid") == cp:
        return
    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(context_parallel_size=cp)
    cache.clear()
    cache["grid"] = cp


def batch_options(job: Job) -> list[str]:
    """The sizes of a job, as slime and miles spell them on the command line.

    Raises:
        Unsupported: steps or prompts of different sizes, or micro-batches of another kind.
    """
    rollouts = _uniform({len(np.unique(step.rollouts)) for step in job.steps}, "rollouts in steps")
    per_prompt = _uniform(
        {
            len(np.unique(step.rollouts[step.groups == group]))
            for step in job.steps
            for group in np.unique(step.groups)
        },
        "rollouts of prompts",
    )
    return [
        f"--rollout-batch-size={rollouts * len(job.steps) // per_prompt}",
        f"--n-samples-per-prompt={per_prompt}",
        f"--global-batch-size={rollouts}",
        "--num-rollout=1",
        f"--context-parallel-size={job.layout.cp}",
        *_micro_batch_options(job),
    ]


def train_parallel_config(layout: Layout) -> dict[str, int]:
    """What slime's and miles' trainers tell the rollout side of a layout."""
    return {
        "dp_size": layout.dp,
        "cp_size": layout.cp,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }


def mode_options(job: Job, parser: argparse.ArgumentParser) -> list[str]:
    """The mode, by the option for the four modes or by what there was before it."""
    aggregation, known = job.aggregation, parser._option_string_actions
    if "--loss-aggregation" in known:
        divisor = aggregation.divisor
        extra = [] if divisor is None else [f"--loss-aggregation-divisor={divisor}"]
        return [f"--loss-aggregation={aggregation.mode}", *extra]
    if aggregation.mode is Mode.CONSTANT:
        return [f"--pg-loss-divisor={aggregation.divisor}"]
    return ["--calculate-per-token-loss"] if aggregation.mode is Mode.TOKEN_MEAN else []


def modes(parser: argparse.ArgumentParser) -> frozenset[Mode]:
    """The modes that a framework's options offer."""
    known = parser._option_string_actions
    if "--loss-aggregation" in known:
        return frozenset(Mode)
    before = {Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN}
    return frozenset(before | {Mode.CONSTANT} if "--pg-loss-divisor" in known else before)


def cached_model(args: Any, job: Job, probe_size: int, rank: Rank) -> Any:
    """The policy for a job, kept as long as the rank's process groups."""
    capacity = 1 << probe_size.bit_length()
    key = (args.calculate_per_token_loss, capacity)
    if key not in rank.cache:
        rank.cache[key] = build_model(
            capacity,
            calculate_per_token_loss=args.calculate_per_token_loss,
            context_parallel_size=job.layout.cp,
        )
    return rank.cache[key]


def sample_fields(batch: ProbedBatch) -> list[tuple[int, dict[str, Any]]]:
    """Each sample's rollout, and what slime's and miles' sample objects have in common.

    Identifiers are unique over the steps of the batch.
    """
    owners = [(n, i) for n, step in enumerate(batch.steps) for i in range(step.size)]
    groups = _numbered((n, batch.steps[n].groups[i]) for n, i in owners)
    rollouts = _numbered((n, batch.steps[n].rollouts[i]) for n, i in owners)
    return [
        (
            rollout,
            {
                "group_index": group,
                "tokens": np.concatenate([prompt, response]).tolist(),
                "response_length": len(response),
                "loss_mask": mask.astype(int).tolist(),
                "reward": 0.0,
            },
        )
        for group, rollout, prompt, response, mask in zip(
            groups, rollouts, batch.prompts, batch.responses, batch.masks, strict=True
        )
    ]


def require_one_sample_per_rollout(batch: ProbedBatch) -> None:
    """For frameworks that know no rollouts.

    Raises:
        Unsupported: some rollout has several samples.
    """
    if any(len(np.unique(step.rollouts)) < step.size for step in batch.steps):
        raise Unsupported("no several samples of one rollout")


def advantages_of(token_ids: Sequence[torch.Tensor], batch: ProbedBatch) -> list[torch.Tensor]:
    """The advantages of samples known by their first token, whatever became of their order."""
    of_first_token = {int(ids[0]): i for i, ids in enumerate(batch.prompts)}
    owners = [of_first_token[int(ids[0])] for ids in token_ids]
    return [torch.from_numpy(batch.advantages[i]).float() for i in owners]


def _micro_batch_options(job: Job) -> list[str]:
    layout = job.layout
    if isinstance(layout.micro_batches, int):
        return [f"--micro-batch-size={_micro_batch_size(job, layout.micro_batches)}"]
    if layout.micro_batches == "tokens":
        tokens = [int((step.prompt_lengths + step.response_lengths).sum()) for step in job.steps]
        budget = max(tokens) // (3 * layout.dp * layout.cp) + 1
        return ["--use-dynamic-batch-size", f"--max-tokens-per-gpu={budget}"]
    raise Unsupported(f"no micro-batches by {layout.micro_batches}")


def _micro_batch_size(job: Job, micro_batches: int) -> int:
    """The size of which there are just so many micro-batches on every rank, in every step."""
    wanted = job.layout.dp * micro_batches
    for size in range(1, max(step.size for step in job.steps) + 1):
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no size of micro-batches that makes {wanted} of the samples of every step")


def _uniform(counts: set[int], what: str) -> int:
    if len(counts) > 1:
        raise Unsupported(f"no different numbers of {what}: {sorted(counts)}")
    return counts.pop()


def _numbered(keys: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
