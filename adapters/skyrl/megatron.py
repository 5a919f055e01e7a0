"""SkyRL's Megatron engine: its worker and model wrapper, on Megatron-Core around our policy.

The worker initialises its process groups and its model by its own code, with the settings of data
parallelism it has by default: the distributed optimizer and averaging in the collective. Our model
comes in where Megatron-Bridge would build one from a checkpoint.

The probe is a second logit beside the only token's, and the entropies are a third: SkyRL unpacks,
recovers and gathers logits over context-parallel ranks before log-probabilities are computed or
after, by version, and both go all the way with them. The seams are where one logit becomes one
log-probability, and one entropy.
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
"""Nothing but registrations of models with Megatron-Bridge."""

CONVERSION = "megatron.bridge.models.conversion.model_bridge"
"""Where Megatron-Bridge takes registrations."""

LOG_PROB_FUNCTIONS = ("DistributedLogprob", "ChunkedDistributedLogprob")
"""SkyRL's autograd functions that make a log-probability of each position's logits."""

ENTROPY_FUNCTION = "_VocabParallelEntropy"
"""Its function that makes an entropy of them."""


class SkyRLMegatronAdapter(SkyRLAdapter):
    """SkyRL with its Megatron engine."""

    engine = "megatron"
    dependencies = ("megatron-core", "ray", "tensordict", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data × context parallelism on up to 8 ranks, packed; padded without; some things once."""
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
                # The steps of a batch then differ in how many micro-batches they are cut into.
                Layout(cp=2, micro_batches="tokens", format="thd", options=overlapping),
            ],
            key=lambda layout: layout.world_size,
        )

    def load_engine(self) -> None:
        """The seams are at the autograd functions that SkyRL makes something of logits with."""
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
        """Options are what SkyRL's configuration of Megatron's data parallelism can spell."""
        known = {field.name for field in fields(module("train.config.config").MegatronDDPConfig)}
        found = super().describe()
        model_wrapper = module(MODEL_WRAPPER).MegatronModelWrapper
        return replace(
            found,
            options=frozenset(option for option in policy.OPTIONS if option in known),
            largest_tp=2,
            # Where Megatron is told what to call around the reduction of gradients.
            places={**found.places, CodeLocation.REDUCTION: code_location(model_wrapper.__init__)},
            departures=(*found.departures, *departures.MEGATRON),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """With Megatron's own parallelism, for a model without attention."""
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
        """Train where the worker's CUDA device is the CPU if there is no other."""
        with cuda_on_cpu.redirected():
            return super().observe(job, rank)

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker, kept as long as its process groups, with a model of its own."""
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
    """Why SkyRL cannot pack with the Megatron-Core there is, found by packing one token.

    It is one rank's: no process groups are needed.
    """
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
    """A worker that has made Megatron's process groups for the layout."""
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
    """Run the worker's own `init_model`, with our model and optimizer where it would make its."""
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
    """Makes our policy where Megatron-Bridge would make SkyRL's from a checkpoint."""

    def __init__(self, job: Job, capacity: int, rank: Rank) -> None:
        self._layout = job.layout
        self._data_parallel = job.depth is Depth.STEP
        self._capacity = capacity
        self._device, self._dtype = rank.device, getattr(torch, rank.dtype)

    def provide_distributed_model(
        self, *, ddp_config: Any, wrap_with_ddp: bool, bf16: bool
    ) -> list[Any]:
        """In data parallelism as SkyRL has it configured, unless the depth ends before that."""
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.transformer.transformer_config import TransformerConfig

        config = TransformerConfig(
            num_layers=1,
            hidden_size=8,
            num_attention_heads=2,
            tensor_model_parallel_size=self._layout.tp,
            sequence_parallel=self._layout.tp > 1,
            context_parallel_size=self._layout.cp,
            pipeline_dtype=self._dtype,
            params_dtype=self._dtype,
            bf16=bf16,
        )
        model = _probed_model(config, self._capacity).to(self._device, self._dtype)
        if not self._data_parallel:
            return [model]
        return [DistributedDataParallel(config, ddp_config, model)]

    def policy(self, model: Any) -> policy.Policy:
        """A model of ours, and how its gradient is had."""
        if not self._data_parallel:
            return policy.BarePolicy(model, model.probe)
        sharded = model.ddp_config.use_distributed_optimizer
        return (policy.ShardedPolicy if sharded else policy.Policy)(model, model.module.probe)


class _Optimizer(policy.ReadingOptimizer):
    """With a learning rate that can be logged."""

    param_groups = ({"lr": 0.0},)


def _probed_model(config: Any, capacity: int) -> Any:
    from megatron.core import mpu
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class ProbedModel(MegatronModule):  # type: ignore[misc]
        """Knows one token, hence gives it a probability of 1, and carries the probe."""

        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.probe = nn.Parameter(torch.zeros(capacity))
            first = mpu.get_tensor_model_parallel_rank() == 0
            self.logit = 0.0 if first else policy.IMPOSSIBLE_LOGIT

        def set_input_tensor(self, input_tensor: Any) -> None:
            """Of pipeline parallelism, which there is none of."""

        def zero_grad_buffer(self) -> None:
            """As SkyRL asks of `DistributedDataParallel` around a step."""
            self.zero_grad()

        def forward(
            self,
            input_ids: torch.Tensor,
            position_ids: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            packed_seq_params: Any = None,
        ) -> torch.Tensor:
            """The token's logit, and of what is predicted the probe's entries and its entropies.

            They are as long as logits: [*input_ids, 3], and in float32, as Megatron's own wrapper
            of narrower models makes them.
            """
            FORWARD_PASSES.note(input_ids)
            offered = self.probe.float()[input_ids + 1]
            entropies = cycled(ENTROPIES, input_ids + 1)
            logits = torch.full_like(offered, self.logit)
            return torch.stack([logits, offered, entropies], dim=-1)

    return ProbedModel()


class _Seam:
    """An autograd function of SkyRL's for log-probabilities, with the probe added to them."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def apply(self, logits: torch.Tensor, targets: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Takes every target for the only token."""
        log_probs = self._function.apply(logits[..., :1], torch.zeros_like(targets), *rest)
        return log_probs + logits[..., 1]


class _EntropySeam:
    """SkyRL's for entropies, with those of the only token's successors and the probe added."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The real function is given the only token's logits."""
        return self._function.apply(logits[..., :1]) + logits[..., 2] + logits[..., 1]
