"""SkyRL's Megatron worker, with a model that holds the probe.

The model has three logits: the only token's logit, the probe's entry and the entropy. Depending on
the version, SkyRL unpacks logits and gathers them over context-parallel ranks before or after it
computes log-probabilities; the probe and entropies pass through the same code. We wrap the
functions that turn a logit into a log-probability or an entropy.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.engines import experts, megatron_core
from adapters.skyrl.driving import capacity
from adapters.skyrl.importing import module, ppo_utils
from adapters.toolkit.calls import call_supported
from adapters.toolkit.imports import STUBBED, stub, stub_missing
from adapters.toolkit.probe import cycled

if TYPE_CHECKING:
    from adapters.contract import Job, Rank, Settings

# A package that only registers models with Megatron-Bridge.
MODEL_BRIDGES = "skyrl.backends.skyrl_train.workers.megatron.model_bridges"
WORKER = "backends.skyrl_train.workers.megatron.megatron_worker"
MODEL_WRAPPER = "backends.skyrl_train.workers.megatron.megatron_model_wrapper"


def add_seams() -> None:
    """Add the probe to SkyRL's autograd functions for log-probabilities and entropies.

    Newer versions describe packed rows with fields that the installed Megatron-Core may lack.
    """
    stub([MODEL_BRIDGES])
    stub_missing(["megatron.bridge"])
    if "megatron.bridge" in STUBBED:  # older versions register models in the worker itself
        conversion = importlib.import_module("megatron.bridge.models.conversion.model_bridge")
        conversion.MegatronModelBridge.register_bridge = conversion.register_bridge
    model_utils = module("backends.skyrl_train.distributed.megatron.model_utils")
    for name in ("DistributedLogprob", "ChunkedDistributedLogprob"):
        setattr(model_utils, name, _probed(getattr(model_utils, name)))
    model_utils._VocabParallelEntropy = _probed_entropy(model_utils._VocabParallelEntropy)
    packing = module("backends.skyrl_train.distributed.megatron.megatron_utils")
    packing.PackedSeqParams = partial(call_supported, packing.PackedSeqParams)
    module(WORKER)


def precision(dtype: str) -> Settings:
    """The dtype of parameters."""
    return {"trainer.bf16": dtype == "bfloat16"}


def worker(model: str, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
    """The policy's worker with a new model; the worker is kept as long as Megatron's groups."""
    with rank.framework():
        if megatron_core.enter_grid(job.layout, rank):
            rank.cache[WORKER] = _joined(config, job, rank)
        found = rank.cache[WORKER]
        found.cfg = config.trainer
        found._micro_batches_accumulated = 0  # older versions count accumulated micro-batches
        _init_model(found, _Provider(job, capacity(probe_size), rank))
    return found


def _joined(config: Any, job: Job, rank: Rank) -> Any:
    """A worker that has joined new process groups."""
    joined = object.__new__(module(WORKER).MegatronPolicyWorkerBase)
    joined.cfg = config.trainer
    joined._world_size = job.layout.world_size
    joined._rank = joined._local_rank = rank.index
    joined._is_lora, joined.adapter_store = False, None
    joined.init_worker_process_group()
    return joined


def _init_model(worker: Any, provider: _Provider) -> None:
    """Run the worker's own `init_model` with our model and optimizer."""
    megatron_worker = module(WORKER)

    def optimizer(modules: list[Any], config: Any) -> megatron_core.ReadingOptimizer:
        module(MODEL_WRAPPER).finalize_model_grads = provider.policy.finalize_model_grads
        return megatron_core.ReadingOptimizer(provider.policy)

    megatron_worker.get_megatron_optimizer = optimizer
    megatron_worker.get_megatron_optimizer_param_scheduler = lambda **_: megatron_core.scheduler()
    worker.init_configs = lambda *args, **kwargs: None
    worker.provider = provider
    worker.is_vlm = worker.enable_router_replay = False
    worker.policy_loss_fn = ppo_utils().PolicyLossRegistry.get(
        worker.cfg.algorithm.policy_loss_type
    )
    worker.init_model(model_path=os.curdir)
    worker.gradients, worker.passes = worker.optimizer.gradients, provider.policy.passes


class _Provider:
    """A stub of Megatron-Bridge's provider that makes our model."""

    policy: megatron_core.Policy

    def __init__(self, job: Job, size: int, rank: Rank) -> None:
        self._job, self._size, self._rank = job, size, rank
        self._batch = ProbedBatch.of(job)

    def provide_distributed_model(
        self, *, ddp_config: Any, wrap_with_ddp: bool, bf16: bool
    ) -> list[Any]:
        """The model, wrapped in data parallelism as SkyRL configures it at depth `step`."""
        layout, dtype = self._job.layout, getattr(torch, self._rank.dtype)
        config = megatron_core.transformer_config(
            layout, dtype, sequence_parallel=layout.tp > 1, **experts.options(self._job)
        )
        of_model = config, self._size, self._rank, partial(_three_logits, self._batch)
        self.policy = megatron_core.make_policy(*of_model, self._job.depth, ddp_config)
        return self.policy.chunks


def _three_logits(
    batch: ProbedBatch, input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The logit, the summand of log-probabilities and the entropy, by token: [*input_ids, 3].

    The summand is the probe's entry plus the token's log-probability.
    """
    offered = probe[input_ids + 1] + cycled(batch.log_prob_table, input_ids + 1)
    logits = (logit + megatron_core.vocabulary_offset()).expand_as(offered)
    return torch.stack([logits, offered, cycled(batch.entropy_table, input_ids + 1)], dim=-1)


def _probed(function: Any) -> Any:
    """SkyRL's autograd function for log-probabilities of the only token, with the probe added."""

    def apply(logits: torch.Tensor, targets: torch.Tensor, *rest: Any) -> Any:
        return function.apply(logits[..., :1], torch.zeros_like(targets), *rest) + logits[..., 1]

    return SimpleNamespace(apply=apply)


def _probed_entropy(function: Any) -> Any:
    """SkyRL's autograd function for entropies, adding the batch's entropies and the probe."""

    def apply(logits: torch.Tensor) -> Any:
        return function.apply(logits[..., :1]) + logits[..., 2] + logits[..., 1]

    return SimpleNamespace(apply=apply)
