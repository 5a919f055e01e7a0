"""Megatron-Core on the CPU: what every adapter of a framework that trains with it needs.

Its pipeline schedule, `DistributedDataParallel` and `finalize_model_grads` run as they are. Ours
are a model that carries the probe, a seam behind the framework's log-probabilities where the probe
is added, and an optimizer that reads the gradient instead of applying it.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from adapters import cuda_on_cpu
from adapters.imports import stand_in, stand_in_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SERVER_PACKAGES = (
    "aiohttp",
    "blake3",
    "fastapi",
    "flash_attn",
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
        self.gradients: list[torch.Tensor] = []
        self._probe = model.module.probe

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The model's buffers are zeroed by the framework."""

    def step(self) -> tuple[bool, float, int]:
        """Megatron's answer: success, gradient norm, number of zeros."""
        self.gradients.append(self._probe.main_grad.detach().cpu().clone())
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
