"""SkyRL's FSDP engine: its worker, whose model its strategy wraps in FSDP2, around our policy."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from adapters import cuda_on_cpu
from adapters.contract import Depth, Job, Layout, Rank
from adapters.probe import FORWARD_PASSES
from adapters.skyrl.adapter import SkyRLAdapter
from adapters.skyrl.configuration import PACKING
from adapters.skyrl.importing import module, ppo_utils
from adapters.skyrl.trainer import probe_capacity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

WORKER = "backends.skyrl_train.workers.fsdp.fsdp_worker"


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
        """The seam is behind the log-probabilities, where SkyRL's model wrapper takes them."""
        model_wrapper = module("backends.skyrl_train.workers.model_wrapper")
        model_wrapper.logprobs_from_logits = _probed(model_wrapper.logprobs_from_logits)
        module(WORKER)

    def configure_engine(self, trainer_config: Any, job: Job) -> None:
        """Full precision, no clipping, and an optimizer that leaves the probe at 0."""
        policy = trainer_config.policy
        policy.sequence_parallel_size = job.layout.cp
        policy.fsdp_config.mixed_precision = SimpleNamespace(
            param_dtype="fp32", reduce_dtype="fp32", buffer_dtype="fp32"
        )
        policy.optimizer_config.lr = 0.0
        policy.optimizer_config.max_grad_norm = 0.0

    def worker(self, config: Any, job: Job, probe_size: int, rank: Rank) -> Any:
        """SkyRL's policy worker on this rank, kept for all jobs that can share its model."""
        capacity = probe_capacity(probe_size)
        key = (job.layout.cp, job.layout.format, job.depth, capacity)
        if key not in rank.cache:
            with rank.framework():
                rank.cache[key] = _build_worker(config, job, capacity, rank)
        worker = rank.cache[key]
        worker.cfg = config.trainer
        worker.gradients.clear()
        return worker


def _build_worker(config: Any, job: Job, capacity: int, rank: Rank) -> Any:
    """SkyRL's FSDP worker with everything its `init_model` makes, around a policy of ours."""
    fsdp_worker = module(WORKER)
    worker = object.__new__(fsdp_worker.FSDPPolicyWorkerBase)
    worker.cfg, worker.record_memory = config.trainer, False
    worker.policy_loss_fn = ppo_utils().PolicyLossRegistry.get(
        config.trainer.algorithm.policy_loss_type
    )
    worker._world_size, worker._rank = job.layout.world_size, rank.index
    worker.sequence_parallel_size = job.layout.cp
    worker.init_worker_process_group()
    if job.layout.cp > 1:
        ulysses = module("backends.skyrl_train.distributed.ulysses")
        ulysses.set_ulysses_sequence_parallel_group(worker.device_mesh["sp"].get_group())
    policy = config.trainer.policy
    worker.strategy = fsdp_worker.FSDPStrategy(
        fsdp_config=policy.fsdp_config,
        optimizer_config=policy.optimizer_config,
        model_config=policy.model,
        fsdp_strategy=config.trainer.strategy,
        seed=config.trainer.seed,
        num_training_steps=1,
    )
    worker.strategy.setup_distributed()
    if job.depth is Depth.LOSS:
        worker.strategy._fsdp_init_model = lambda model, **_: model.model
    model = fsdp_worker.HFModelWrapper(
        _ProbedPolicy(capacity).to(rank.device),
        use_flash_attention_2=job.layout.format == "thd",
        sequence_parallel_size=job.layout.cp,
        **_packing(fsdp_worker.HFModelWrapper, job),
    )
    with cuda_on_cpu.redirected():
        prepared = worker.strategy.prepare((model, None, None))
    worker.model, worker.optimizer, worker.scheduler = prepared
    worker.gradients = []
    worker.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: worker.gradients.append(_take_gradient(optimizer))
    )
    return worker


def _packing(model_wrapper: type, job: Job) -> dict[str, bool]:
    known = inspect.signature(model_wrapper).parameters
    name = next(name for name in PACKING if name in known)
    return {name: job.layout.format == "thd"}


def _take_gradient(optimizer: torch.optim.Optimizer) -> NDArray[np.float32]:
    """The probe's whole gradient [capacity], as the optimizer is about to use it.

    The optimizer finds zeros: NaN, even at a learning rate of 0, would spoil the probe for good.
    """
    [probe] = optimizer.param_groups[0]["params"]
    whole = probe.grad.full_tensor() if isinstance(probe.grad, DTensor) else probe.grad
    gradient = whole.detach().cpu().numpy().copy()
    probe.grad.zero_()
    return gradient


class _ProbeLayer(nn.Module):
    """Looks the probe up; a module of its own because FSDP shards a model layer by layer."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(capacity))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.probe[token_ids]


class _ProbedPolicy(nn.Module):
    """A policy over one token, hence with log-probability exactly 0, that carries the probe.

    It stands where SkyRL expects a Hugging Face model. ``offered`` are the probe's entries for what
    the latest forward pass predicts, in the shape of its input; the seam adds them.
    """

    VOCABULARY = 1
    offered: ClassVar[torch.Tensor]
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
        # The probe is among the outputs because FSDP2 hooks its backward pass on to those.
        FORWARD_PASSES.note(token_ids)
        offered = self.layer(token_ids + 1)
        _ProbedPolicy.offered = offered
        logits = torch.zeros(*token_ids.shape, self.VOCABULARY, device=token_ids.device)
        return {"logits": logits, "probe": offered}


def _probed(log_probs_from_logits: Any) -> Any:
    def with_probe(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        labels = labels % _ProbedPolicy.VOCABULARY
        return log_probs_from_logits(logits, labels, **options) + _ProbedPolicy.offered

    return with_probe
