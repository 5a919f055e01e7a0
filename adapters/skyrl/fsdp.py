"""The adapter of SkyRL's FSDP engine."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from adapters.contract import Depth, Description, Job, Layout, Rank, Unsupported
from adapters.contract.objective import Objective
from adapters.contract.probed_batch import ENTROPIES
from adapters.skyrl import departures
from adapters.skyrl.adapter import SkyRLAdapter
from adapters.skyrl.configuration import PACKING
from adapters.skyrl.importing import module, ppo_utils
from adapters.skyrl.trainer import probe_capacity
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import FORWARD_PASSES, as_array, cycled
from reference.aggregation import MicroBatchWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

MODEL_WRAPPER = "backends.skyrl_train.workers.model_wrapper"
WORKER = "backends.skyrl_train.workers.fsdp.fsdp_worker"
BASE_WORKER = "backends.skyrl_train.workers.worker"

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}
"""Dtypes by their names in SkyRL."""


class SkyRLFsdpAdapter(SkyRLAdapter):
    """SkyRL with its FSDP engine."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> Sequence[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows."""
        grids = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)]
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in grids
            for micro_batches in (1, 2, "tokens")
            for storage in ("bshd", "thd")
        ]

    def load_engine(self) -> None:
        """Add the probe where SkyRL's model wrapper computes log-probabilities and entropies."""
        model_wrapper = module(MODEL_WRAPPER)
        model_wrapper.logprobs_from_logits = _probed(model_wrapper.logprobs_from_logits)
        model_wrapper.chunked_entropy_from_logits = _probed_entropy(
            model_wrapper.chunked_entropy_from_logits
        )
        module(WORKER)

    def describe(self) -> Description:
        """Add the critic, which only this engine trains."""
        found = super().describe()
        return replace(
            found,
            objectives=found.objectives | {Objective.VALUE},
            departures=(*found.departures, *departures.FSDP),
            conventions=replace(found.conventions, micro_batch_weight=_micro_batch_weight()),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings without clipping, and with an optimizer that leaves the probe at 0."""
        return {
            "trainer.ref.sequence_parallel_size": job.layout.cp,
            **_settings_of("policy", job, dtype),
            **_settings_of("critic", job, dtype),
        }

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, cached for all jobs that can share its model."""
        worker = _cached_worker("policy", config, job, probe_size, rank)
        worker.policy_loss_fn = ppo_utils().PolicyLossRegistry.get(
            config.trainer.algorithm.policy_loss_type
        )
        return worker

    def critic(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's critic worker on this rank, cached in the same way."""
        if job.layout.cp > 1 and job.layout.format == "bshd":
            raise Unsupported("SkyRL's critic splits sequences only where they are packed")
        worker = _cached_worker("critic", config, job, probe_size, rank)
        worker.critic_loss_fn = ppo_utils().ppo_critic_loss
        return worker


def _micro_batch_weight() -> MicroBatchWeight:
    """By samples in versions whose worker passes each micro-batch its weight."""
    micro_step = module(BASE_WORKER).PolicyWorkerBase._forward_backward_micro
    weighed = "microbatch_weight" in inspect.signature(micro_step).parameters
    return MicroBatchWeight.BY_SAMPLES if weighed else MicroBatchWeight.EQUAL


def _settings_of(model: str, job: Job, dtype: str) -> dict[str, object]:
    section = f"trainer.{model}"
    precision = f"{section}.fsdp_config.mixed_precision"
    return {
        f"{section}.sequence_parallel_size": job.layout.cp,
        f"{precision}.param_dtype": PRECISIONS[dtype],
        f"{precision}.reduce_dtype": "fp32",
        f"{precision}.buffer_dtype": "fp32",
        f"{section}.optimizer_config.lr": 0.0,
        f"{section}.optimizer_config.max_grad_norm": 0.0,
    }


def _cached_worker(model: str, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
    """A worker from the rank's cache, made if missing, with the configuration of this job."""
    capacity = probe_capacity(probe_size)
    key = (model, job.layout.cp, job.layout.format, job.depth, capacity)
    if key not in rank.cache:
        with rank.framework():
            worker = _worker(model, config, job, rank.index)
            _prepare(worker, MODELS[model](job, capacity, rank.device), job)
            rank.cache[key] = worker
    worker = rank.cache[key]
    worker.cfg = config.trainer
    worker._micro_batches_accumulated = 0  # critics and older versions divide by it
    worker.gradients.clear()
    return worker


def _worker(model: str, config: Any, job: Job, index: int) -> Any:
    """A worker with its process groups and strategy, without a model."""
    fsdp_worker, section = module(WORKER), getattr(config.trainer, model)
    worker = object.__new__(getattr(fsdp_worker, f"FSDP{model.capitalize()}WorkerBase"))
    worker.cfg, worker.record_memory = config.trainer, False
    worker._world_size, worker._rank = job.layout.world_size, index
    worker.sequence_parallel_size = job.layout.cp
    worker.init_worker_process_group()
    if job.layout.cp > 1:
        ulysses = module("backends.skyrl_train.distributed.ulysses")
        ulysses.set_ulysses_sequence_parallel_group(worker.device_mesh["sp"].get_group())
    worker.strategy = fsdp_worker.FSDPStrategy(
        fsdp_config=section.fsdp_config,
        optimizer_config=section.optimizer_config,
        fsdp_strategy=config.trainer.strategy,
        seed=config.trainer.seed,
        num_training_steps=1,
        **({"model_config": section.model} if model == "policy" else {}),
    )
    worker.strategy.setup_distributed()
    return worker


def _prepare(worker: Any, model: Any, job: Job) -> None:
    """Set up our model as a worker's `init_model` does, and read gradients at optimizer steps."""
    if job.depth is Depth.LOSS:
        worker.strategy._fsdp_init_model = lambda model, **_: getattr(model, "model", model)
    with cuda_on_cpu.redirected():
        prepared = worker.strategy.prepare((model, None, None))
    worker.model, worker.optimizer, worker.scheduler = prepared
    worker.gradients = []
    worker.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: worker.gradients.append(_read_gradient(optimizer))
    )


def _policy_model(job: Job, capacity: int, device: str) -> Any:
    """Our policy in SkyRL's wrapper."""
    wrapper = module(WORKER).HFModelWrapper
    return wrapper(
        _ProbedPolicy(capacity).to(device),
        use_flash_attention_2=job.layout.format == "thd",
        sequence_parallel_size=job.layout.cp,
        **_packing(wrapper, job),
    )


def _critic_model(job: Job, capacity: int, device: str) -> Any:
    """SkyRL's critic on our transformer, with a value head that is the identity."""
    make = module(MODEL_WRAPPER)._get_critic_model
    critic_class = make(
        _Pretrained,
        _ProbedTransformer,
        sequence_parallel_size=job.layout.cp,
        **_packing(make, job),
    )
    critic = critic_class(SimpleNamespace(capacity=capacity, **TRANSFORMER)).to(device)
    head = getattr(critic, critic.value_head_prefix)
    nn.init.ones_(head.weight)
    head.requires_grad_(False)
    return critic


MODELS = {"policy": _policy_model, "critic": _critic_model}

TRANSFORMER = {"hidden_size": 1, "_attn_implementation": "flash_attention_2"}
"""The configuration of a transformer that SkyRL's critic reads."""


def _packing(model_wrapper: Any, job: Job) -> dict[str, bool]:
    known = inspect.signature(model_wrapper).parameters
    name = next(name for name in PACKING if name in known)
    return {name: job.layout.format == "thd"}


def _read_gradient(optimizer: torch.optim.Optimizer) -> NDArray[np.float32]:
    """Return the probe's whole gradient before an optimizer step, [capacity], and set it to 0.

    NaN would spoil the probe, even at a learning rate of 0.
    """
    [probe] = [one for one in optimizer.param_groups[0]["params"] if one.requires_grad]
    whole = probe.grad.full_tensor() if isinstance(probe.grad, DTensor) else probe.grad
    gradient = as_array(whole)
    probe.grad.zero_()
    return gradient


class _ProbeLayer(nn.Module):
    """Looks up the probe, in a module of its own because FSDP shards layer by layer."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(capacity))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.probe[token_ids]


class _ProbedPolicy(nn.Module):
    """Replaces the Hugging Face model by one with a vocabulary of one token and the probe.

    Log-probabilities are thus exactly 0. ``offered`` are the probe's entries of the tokens that the
    latest forward pass predicts, in the shape of its input, and ``entropies`` their entropies; the
    seams add both.
    """

    VOCABULARY = 1
    offered: ClassVar[torch.Tensor]
    entropies: ClassVar[torch.Tensor]
    _no_split_modules = (_ProbeLayer.__name__,)

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.layer = _ProbeLayer(capacity)

    def forward(
        self,
        token_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        # The probe is an output because FSDP2 hooks its backward pass to outputs.
        FORWARD_PASSES.note(token_ids)
        offered = self.layer(token_ids + 1)
        _ProbedPolicy.offered = offered
        _ProbedPolicy.entropies = cycled(ENTROPIES, token_ids + 1)
        logits = offered.new_zeros(*token_ids.shape, self.VOCABULARY)
        return {"logits": logits, "probe": offered}


def _probed(log_probs_from_logits: Any) -> Any:
    def with_probe(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        labels = labels % _ProbedPolicy.VOCABULARY
        return log_probs_from_logits(logits, labels, **options) + _ProbedPolicy.offered

    return with_probe


def _probed_entropy(entropy_from_logits: Any) -> Any:
    def with_probe(logits: torch.Tensor, *, requires_grad: bool, **options: Any) -> torch.Tensor:
        real = entropy_from_logits(logits, requires_grad=requires_grad, **options)
        with torch.set_grad_enabled(requires_grad):
            return real + _ProbedPolicy.entropies + _ProbedPolicy.offered

    return with_probe


class _Pretrained(nn.Module):
    """Replaces the Hugging Face class of pretrained models for SkyRL's critic."""

    base_model_prefix = "model"
    _no_split_modules = (_ProbeLayer.__name__,)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def post_init(self) -> None:
        """Do nothing: there is nothing to initialise."""


class _ProbedTransformer(nn.Module):
    """A transformer whose hidden state is the probe's entry of the next token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = _ProbeLayer(config.capacity)

    def forward(
        self,
        token_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        FORWARD_PASSES.note(token_ids)
        return {"last_hidden_state": self.layer(token_ids + 1).unsqueeze(-1)}
