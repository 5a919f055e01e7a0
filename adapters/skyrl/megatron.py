"""The adapter of SkyRL's Megatron engine.

The worker initialises its process groups and its model with its own code and its default data
parallelism: the distributed optimizer and averaging in the collective. Our model replaces the one
that Megatron-Bridge would build from a checkpoint.

The model has three logits: that of the only token, the probe's entry and the entropy. By version,
SkyRL unpacks and gathers logits over context-parallel ranks before or after it computes
log-probabilities, and the probe and entropies go the same way. The seams are the functions that
turn a logit into a log-probability or an entropy.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from adapters.contract import (
    CodeLocation,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    Option,
    Rank,
    Unsupported,
    code_location,
    grids,
)
from adapters.contract.probed_batch import ENTROPIES
from adapters.skyrl import departures
from adapters.skyrl.adapter import SkyRLAdapter
from adapters.skyrl.importing import STUBBED, module, ppo_utils
from adapters.skyrl.trainer import probe_capacity
from adapters.slime_family import policy
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.imports import stub, stub_missing
from adapters.toolkit.probe import FORWARD_PASSES, cycled

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKER = "backends.skyrl_train.workers.megatron.megatron_worker"
MODEL_WRAPPER = "backends.skyrl_train.workers.megatron.megatron_model_wrapper"
MODEL_BRIDGES = "skyrl.backends.skyrl_train.workers.megatron.model_bridges"
"""A package that only registers models with Megatron-Bridge."""

CONVERSION = "megatron.bridge.models.conversion.model_bridge"
"""The module of Megatron-Bridge that models are registered with."""

LOG_PROB_FUNCTIONS = ("DistributedLogprob", "ChunkedDistributedLogprob")
"""SkyRL's autograd functions that compute log-probabilities of logits."""

ENTROPY_FUNCTION = "_VocabParallelEntropy"
"""SkyRL's autograd function that computes entropies of logits."""


class SkyRLMegatronAdapter(SkyRLAdapter):
    """SkyRL with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data × context parallelism on up to 8 ranks; padded rows without the latter."""
        overlapping = (Option.OVERLAP_GRAD_REDUCE,)
        return sorted(
            [
                Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
                for dp, cp in grids(largest=8)
                for micro_batches in (1, 2, "tokens")
                for storage in ("bshd", "thd")
                if storage == "thd" or cp == 1
            ]
            + [
                Layout(dp=2, cp=2, tp=2, micro_batches=2, format="thd"),
                Layout(dp=2, cp=2, micro_batches=2, format="thd", options=overlapping),
                # The steps of a batch then differ in their number of micro-batches.
                Layout(cp=2, micro_batches="tokens", format="thd", options=overlapping),
            ],
            key=lambda layout: layout.world_size,
        )

    def load_engine(self) -> None:
        """Add the probe to SkyRL's autograd functions for log-probabilities and entropies."""
        stub([MODEL_BRIDGES])
        STUBBED.extend([*stub_missing(["megatron.bridge"]), MODEL_BRIDGES])
        if "megatron.bridge" in STUBBED:  # older versions register models in the worker itself
            conversion = importlib.import_module(CONVERSION)
            conversion.MegatronModelBridge.register_bridge = conversion.register_bridge
        model_utils = module("backends.skyrl_train.distributed.megatron.model_utils")
        for name in LOG_PROB_FUNCTIONS:
            setattr(model_utils, name, _Seam(getattr(model_utils, name)))
        entropy = _EntropySeam(getattr(model_utils, ENTROPY_FUNCTION))
        setattr(model_utils, ENTROPY_FUNCTION, entropy)
        module(WORKER)

    def describe(self) -> Description:
        """Add the options of SkyRL's configuration for Megatron's data parallelism."""
        known = {field.name for field in fields(module("train.config.config").MegatronDDPConfig)}
        found = super().describe()
        model_wrapper = module(MODEL_WRAPPER).MegatronModelWrapper
        return replace(
            found,
            options=frozenset(option for option in policy.OPTIONS if option in known),
            largest_tp=2,
            # It sets the functions that Megatron calls around the reduction of gradients.
            places={**found.places, CodeLocation.REDUCTION: code_location(model_wrapper.__init__)},
            departures=(*found.departures, *departures.MEGATRON),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of Megatron's parallelism, for a model without attention."""
        if job.layout.format == "thd" and _packing_fault() is not None:
            raise Unsupported(
                f"this SkyRL packs samples with another Megatron-Core than"
                f" {version('megatron-core')}: {_packing_fault()}"
            )
        megatron = "trainer.policy.megatron_config"
        return {
            "trainer.strategy": "megatron",
            "trainer.bf16": dtype == "bfloat16",
            "trainer.flash_attn": False,
            **_parallelism(megatron, job),
            **_parallelism("trainer.ref.megatron_config", job),
            **{f"{megatron}.ddp_config.{option}": True for option in job.layout.options},
        }

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train, with the CPU as CUDA device if there is no GPU."""
        with cuda_on_cpu.redirected():
            return super().observe(job, rank)

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker, cached as long as its process groups, with a new model."""
        with rank.framework():
            worker = _joined_worker(config, job, rank)
            policy.reduce_one_by_one_over_gloo(rank)
            _init_model(worker, _Provider(job, probe_capacity(probe_size), rank))
        return worker


def _parallelism(section: str, job: Job) -> dict[str, object]:
    return {
        f"{section}.tensor_model_parallel_size": job.layout.tp,
        f"{section}.context_parallel_size": job.layout.cp,
    }


@cache
def _packing_fault() -> str | None:
    """Why SkyRL cannot pack with this Megatron-Core, tested by packing one token on one rank."""
    utils = module("backends.skyrl_train.distributed.megatron.megatron_utils")
    parallel_state = utils.mpu
    utils.mpu = SimpleNamespace(
        get_tensor_model_parallel_world_size=lambda: 1,
        get_context_parallel_world_size=lambda: 1,
        get_context_parallel_rank=lambda: 0,
    )
    try:
        utils.preprocess_packed_seqs(
            torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
        )
    except TypeError as error:
        return str(error)
    finally:
        utils.mpu = parallel_state
    return None


def _joined_worker(config: Any, job: Job, rank: Rank) -> Any:
    """A worker with Megatron's process groups for the layout."""
    grid = job.layout.tp, job.layout.cp
    if grid not in rank.cache:
        from megatron.core import mpu

        if mpu.model_parallel_is_initialized():
            mpu.destroy_model_parallel()
        rank.cache.clear()
        worker = object.__new__(module(WORKER).MegatronPolicyWorkerBase)
        worker.cfg = config.trainer
        worker._world_size = job.layout.world_size
        worker._rank = worker._local_rank = rank.index
        worker._is_lora, worker.adapter_store = False, None
        worker.init_worker_process_group()
        rank.cache[grid] = worker
    worker = rank.cache[grid]
    worker.cfg = config.trainer
    worker._micro_batches_accumulated = 0  # which older versions count
    return worker


def _init_model(worker: Any, provider: _Provider) -> None:
    """Run the worker's own `init_model` with our model and optimizer."""
    megatron_worker, model_wrapper = module(WORKER), module(MODEL_WRAPPER)

    def optimizer(modules: list[Any], config: Any) -> _Optimizer:
        trained = provider.policy(modules[0])
        model_wrapper.finalize_model_grads = trained.finalize_model_grads
        return _Optimizer(trained)

    megatron_worker.get_megatron_optimizer = optimizer
    megatron_worker.get_megatron_optimizer_param_scheduler = lambda **_: policy.scheduler()
    worker.init_configs = lambda *args, **kwargs: None
    worker.provider = provider
    worker.is_vlm = worker.enable_router_replay = False
    worker.policy_loss_fn = ppo_utils().PolicyLossRegistry.get(
        worker.cfg.algorithm.policy_loss_type
    )
    worker.init_model(model_path=os.curdir)
    worker.gradients = worker.optimizer.gradients


class _Provider:
    """Makes our model, in place of Megatron-Bridge's provider."""

    def __init__(self, job: Job, capacity: int, rank: Rank) -> None:
        self._layout = job.layout
        self._data_parallel = job.depth is Depth.STEP
        self._capacity = capacity
        self._device, self._dtype = rank.device, getattr(torch, rank.dtype)

    def provide_distributed_model(
        self, *, ddp_config: Any, wrap_with_ddp: bool, bf16: bool
    ) -> list[Any]:
        """The model in data parallelism as SkyRL configures it; bare below depth `step`."""
        from megatron.core.distributed import DistributedDataParallel

        config = policy.transformer_config(
            self._layout, self._dtype, sequence_parallel=self._layout.tp > 1
        )
        model = _probed_model(config, self._capacity).to(self._device, self._dtype)
        if not self._data_parallel:
            return [model]
        return [DistributedDataParallel(config, ddp_config, model)]

    def policy(self, model: Any) -> policy.Policy:
        """The policy of a model, which reads its gradient."""
        if not self._data_parallel:
            return policy.BarePolicy(model, model.probe)
        sharded = model.ddp_config.use_distributed_optimizer
        return (policy.ShardedPolicy if sharded else policy.Policy)(model, model.module.probe)


class _Optimizer(policy.ReadingOptimizer):
    """A reading optimizer with a learning rate that can be logged."""

    param_groups = ({"lr": 0.0},)


def _probed_model(config: Any, capacity: int) -> Any:
    from megatron.core import mpu
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedModel(MegatronModule):  # type: ignore[misc]
        """A model with a vocabulary of one token, of probability 1, and the probe."""

        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.probe = nn.Parameter(torch.zeros(capacity))
            first = mpu.get_tensor_model_parallel_rank() == 0
            self.logit = 0.0 if first else policy.IMPOSSIBLE_LOGIT

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Do nothing: there is no pipeline parallelism."""

        def zero_grad_buffer(self) -> None:
            """Zero gradients, as `DistributedDataParallel` does."""
            self.zero_grad()

        def forward(
            self,
            input_ids: torch.Tensor,
            position_ids: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            packed_seq_params: Any = None,
        ) -> torch.Tensor:
            """The logit, the probe's entry and the entropy of each predicted token.

            The shape is [*input_ids, 3], the dtype float32, as Megatron's own wrapper of narrower
            models makes it.
            """
            FORWARD_PASSES.note(input_ids)
            offered = self.probe.float()[input_ids + 1]
            entropies = cycled(ENTROPIES, input_ids + 1)
            logits = torch.full_like(offered, self.logit)
            return torch.stack([logits, offered, entropies], dim=-1)

    return ProbedModel()


class _Seam:
    """SkyRL's autograd function for log-probabilities, with the probe added."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def apply(self, logits: torch.Tensor, targets: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Return log-probabilities of the only token plus the probe."""
        log_probs = self._function.apply(logits[..., :1], torch.zeros_like(targets), *rest)
        return log_probs + logits[..., 1]


class _EntropySeam:
    """SkyRL's autograd function for entropies, with `ENTROPIES` and the probe added."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return entropies of the only token plus the other two logits."""
        return self._function.apply(logits[..., :1]) + logits[..., 2] + logits[..., 1]
