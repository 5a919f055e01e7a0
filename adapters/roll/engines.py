"""The adapters of ROLL's engines: FSDP2 and Megatron."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from adapters.engines.shells import OnFsdp, OnMegatron
from adapters.roll.adapter import RollAdapter
from adapters.roll.framework import FSDP2, MEGATRON, SIZES, rows_differ
from adapters.roll.importing import module
from adapters.toolkit.calls import nothing
from adapters.toolkit.settings import gives_advantages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract import Job, Observation, Rank, Settings
    from adapters.roll.driving import RollRollouts, TrainedWorker
    from reference.arrays import Mask

FSDP2_STRATEGY = "distributed.strategy.fsdp2_strategy"
MEGATRON_STRATEGY = "distributed.strategy.megatron_strategy"

OF_TOKENS = ("max_tokens_per_microbatch_in_train", "sequence_length_round_in_train")
"""Options of micro-batches that are cut by tokens."""


class RollFsdpAdapter(OnFsdp, RollAdapter):
    """ROLL with FSDP2, the first engine in ROLL's guide."""

    engine = "fsdp2"
    framework = FSDP2
    dependencies = ("tensordict", "transformers")
    engine_module = FSDP2_STRATEGY
    log_probs = FSDP2_STRATEGY, "log_probs_from_logits"
    entropies = "utils.functionals", "entropy_from_logits"

    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> TrainedWorker:
        """A worker whose optimizer records the gradient."""
        from adapters.engines import numbered
        from adapters.roll.driving import TrainedWorker, new_worker
        from adapters.toolkit.probe import HEADED, ForwardPasses, GradientReader, ProbedTransformer

        passes = ForwardPasses()
        head: Any = numbered.values if role == "critic" else numbered.outputs
        model = ProbedTransformer(capacity, passes, head)
        loaded: dict[str, Any] = {
            "AutoConfig": SimpleNamespace(from_pretrained=lambda *_, **__: HEADED),
            "download_model": lambda path: path,
        }
        with mock.patch.multiple(module(FSDP2_STRATEGY), **loaded):
            worker = new_worker(role, config, FSDP2_STRATEGY, lambda **_: model)
        gradients = GradientReader(worker.strategy.optimizer)
        return TrainedWorker(worker=worker, passes=passes, gradients=gradients)


class RollMegatronAdapter(OnMegatron, RollAdapter):
    """ROLL with its Megatron engine."""

    engine = "megatron"
    framework = MEGATRON
    dependencies = ("megatron-core", "tensordict", "transformers")
    engine_module = MEGATRON_STRATEGY
    log_probs = MEGATRON_STRATEGY, "vocab_parallel_logprobs"
    entropies = MEGATRON_STRATEGY, "vocab_parallel_entropy"

    def load(self, source: Path | None) -> None:
        """Import ROLL with its Megatron engine."""
        super().load(source)
        strategy = module(MEGATRON_STRATEGY).MegatronTrainStrategy
        strategy.load_states = strategy.offload_states = nothing

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train in the layout's process groups."""
        from adapters.engines import megatron_core

        megatron_core.join_grid(job.layout, rank)
        seen = super().observe(job, rank)
        if job.layout.format != "thd":
            return seen
        return replace(seen, forward_passes=_calls_of_loss(job, seen.forward_passes), rows=())

    def attended(self, job: Job, mask: Mask) -> Mask:
        """All tokens if advantages are given and rows would be cut after the last active token."""
        is_cut = rows_differ(job.layout) and gives_advantages(job)
        return np.ones_like(mask) if is_cut else super().attended(job, mask)

    def window_settings(self, job: Job, settings: Settings, rollouts: RollRollouts) -> Settings:
        """The number of micro-batches that ROLL cuts a step into by tokens.

        ROLL derives the number of steps from samples, and recomputes old log-probabilities if there
        are several steps.
        """
        if job.layout.micro_batches != "tokens":
            return {}
        shard = module("utils.dynamic_batching").dynamic_batching_shard
        budget, rounded = (settings[f"actor_train.{name}"] for name in OF_TOKENS)
        shards = (
            shard(rollouts.batch_of(index), job.layout.dp, budget, rounded)[0]
            for index in range(len(job.steps))
        )
        most = max(one.meta_info["num_micro_batchs"] for one in shards)
        is_recomputed = settings.get("enable_old_logprobs_recompute") or settings["init_kl_coef"]
        return {
            f"{SIZES}.gradient_accumulation_steps": most,
            "force_disable_old_logprobs_recompute": not is_recomputed,
        }

    def make(self, role: str, config: Any, job: Job, capacity: int, rank: Rank) -> TrainedWorker:
        """A worker whose optimizer records the gradient."""
        from adapters.engines import megatron_core
        from adapters.roll.driving import TrainedWorker, new_worker

        chunks = _chunks(job, capacity, rank)
        worker = new_worker(role, config, MEGATRON_STRATEGY, lambda **_: _as_models(chunks))
        policy = megatron_core.wrapped_policy(worker.strategy.models_wrapped, chunks)
        gradients = megatron_core.gradients_of_steps(worker.strategy.optimizer, policy)
        return TrainedWorker(worker=worker, passes=policy.passes, gradients=gradients)

    def configure(self, worker: Any, config: Any, own: Any) -> None:
        """Also update the strategy's copies of configuration values."""
        super().configure(worker, config, own)
        strategy, steps = worker.strategy, own.training_args.gradient_accumulation_steps
        strategy.seq_length = config.sequence_length
        strategy.megatron_train_args.gradient_accumulation_steps = steps


def _calls_of_loss(job: Job, passes: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], ...]:
    """The index of the loss call for each token: ROLL calls the loss per sample of packed rows."""
    return tuple(
        np.where(held < 0, held, np.repeat(np.arange(step.size), step.response_lengths))
        for step, held in zip(job.steps, passes, strict=True)
    )


def _chunks(job: Job, capacity: int, rank: Rank) -> list[Any]:
    """This rank's chunks of our model, which slice batches like ROLL's models."""
    import torch

    from adapters.engines import experts, megatron_core, numbered

    def logits(input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
        of_tokens: torch.Tensor = numbered.outputs(input_ids, probe).logits
        return of_tokens + logit

    options = experts.options(job)
    config = megatron_core.transformer_config(job.layout, torch.float32, **options)
    chunks = megatron_core.probed_model(config, capacity, rank, logits)
    for chunk in chunks:
        slicing = _factory().PretrainedModel.get_batch_on_this_cp_rank
        chunk.get_batch_on_this_cp_rank = MethodType(slicing, chunk)
    return chunks


def _as_models(chunks: list[Any]) -> Any:
    """The chunks, wrapped in `VirtualModels`, the model class of ROLL's Megatron package."""
    remaining = iter(chunks)
    return _factory().VirtualModels(lambda *_, **__: next(remaining), chunks[0].config)


def _factory() -> Any:
    return importlib.import_module("mcore_adapter.models.model_factory")
