"""The adapters of verl's FSDP engines."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Job, Layout, Rank
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import ACTOR, MODEL
from adapters.verl.importing import module

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in verl


class VerlFsdpAdapter(VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
            for micro_batches in (1, 2, "tokens")
            for storage in ("bshd", "thd")
            if cp == 1 or storage == "thd"
        ]

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of the engine, with parameters in the dtype of the run."""
        engine = f"{ACTOR}.fsdp_config"
        precision = PRECISIONS[dtype]
        precisions = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        return {
            f"{ACTOR}.strategy": self.engine,
            f"{MODEL}.use_remove_padding": job.layout.format == "thd",
            f"{engine}.ulysses_sequence_parallel_size": job.layout.cp,
            f"{engine}.use_torch_compile": False,
            f"{engine}.mixed_precision": precisions,
        }

    def worker(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker, cached for all jobs that can share its model."""
        key = (self.engine, job.layout.cp, job.layout.format, capacity)
        if key not in rank.cache:
            rank.cache[key] = _worker(config, rank)
        worker = rank.cache[key]
        _configure_anew(worker, config)
        worker.gradients.drain()
        return worker


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"


def _worker(config: Any, rank: Rank) -> Any:
    """verl's worker with its engine, whose optimizer tells the gradient that it steps with."""
    from adapters.toolkit.probe import GradientReader

    # What Ray sets; the process group is there already, and no address is called.
    os.environ |= {"RANK": str(rank.index), "WORLD_SIZE": str(rank.world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    worker = module("workers.engine_workers").ActorRolloutRefWorker(
        config.actor_rollout_ref, role="actor"
    )
    worker.init_model()
    engine = worker.actor.engine
    worker.gradients = GradientReader(engine.optimizer, partial(_whole, engine.module))
    return worker


def _whole(wrapped: Any, gradient: torch.Tensor) -> NDArray[np.float32]:
    """The gradient of the probe: FSDP1 leaves each rank a shard of it, [capacity / shards]."""
    import torch
    import torch.distributed as dist

    from adapters.toolkit.probe import as_array

    group = getattr(wrapped, "process_group", None)
    if group is None or dist.get_world_size(group) == 1:
        return as_array(gradient)
    shards = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, gradient, group=group)
    return as_array(torch.cat(shards))


def _configure_anew(worker: Any, config: Any) -> None:
    """Give a worker the loss and the micro-batches of another job, as its `init_model` does."""
    as_dataclass = module("utils.config").omega_conf_to_dataclass
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    actor_config = as_dataclass(actor)
    actor_config.model_config = worker.actor.model_config
    engine = worker.actor.engine_config
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    engine.infer_max_token_len_per_gpu = rollout.log_prob_max_token_len_per_gpu
    engine.infer_micro_batch_size_per_gpu = rollout.log_prob_micro_batch_size_per_gpu
    worker.actor.set_loss_fn(partial(module("workers.utils.losses").ppo_loss, config=actor_config))
