"""The adapters of verl's FSDP engines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Description, Job, Layout, Option, Rank
from adapters.contract.objective import Objective
from adapters.toolkit.launching import set_what_ray_sets
from adapters.verl import departures, objectives
from adapters.verl.adapter import VerlAdapter
from adapters.verl.configuration import CRITIC, CRITIC_MODEL, MODEL
from adapters.verl.importing import module
from adapters.verl.objectives import ACTOR
from adapters.verl.worker import configure_anew, new_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from adapters.toolkit.probe import GradientReader

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # dtypes by their names in verl


class VerlFsdpAdapter(VerlAdapter):
    """verl with FSDP1, its default."""

    engine = "fsdp"
    dependencies = ("ray", "tensordict", "transformers")

    def layouts(self) -> list[Layout]:
        """Data parallelism on up to 4 ranks, Ulysses of 2, padded (bshd) or packed (thd) rows.

        Options are those of packed rows.
        """
        hybrid, legacy = (Option.HYBRID_SHARDING,), (Option.LEGACY_TRAINER,)
        plain = [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
            for micro_batches in (1, 2, "tokens")
            for storage in ("bshd", "thd")
            if cp == 1 or storage == "thd"
        ]
        return [
            *plain,
            Layout(dp=4, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, cp=2, micro_batches=2, format="thd", options=hybrid),
            Layout(dp=2, micro_batches=2, format="thd", options=(Option.NOT_SHARDED,)),
            Layout(dp=2, micro_batches=2, format="thd", options=legacy),
            Layout(cp=2, micro_batches="tokens", format="thd", options=legacy),
        ]

    def describe(self) -> Description:
        """Add what needs a critic, and supervised fine-tuning."""
        found = super().describe()
        more = frozenset({*objectives.WITH_CRITIC, Objective.SFT})
        return replace(
            found,
            objectives=found.objectives | objectives.driven(more),
            options=found.options | {Option.HYBRID_SHARDING, Option.NOT_SHARDED},
            departures=(*found.departures, *departures.FSDP),
        )

    def settings(self, job: Job, dtype: str) -> dict[str, object]:
        """Settings of the engines, with parameters in the dtype of the run."""
        settings = self._of_model(ACTOR, f"{ACTOR}.fsdp_config", MODEL, job, dtype)
        if objectives.has_critic(job):
            settings |= self._of_model(CRITIC, f"{CRITIC}.fsdp", CRITIC_MODEL, job, dtype)
        return settings

    def _of_model(
        self, role: str, engine: str, model: str, job: Job, dtype: str
    ) -> dict[str, object]:
        precision = PRECISIONS[dtype]
        precisions = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        return {
            f"{role}.strategy": self.engine,
            f"{model}.use_remove_padding": job.layout.format == "thd",
            f"{engine}.ulysses_sequence_parallel_size": job.layout.cp,
            f"{engine}.fsdp_size": _shards(job.layout),
            f"{engine}.use_torch_compile": False,
            f"{engine}.mixed_precision": precisions,
        }

    def divisor(self, layout: Layout) -> int:
        """All ranks, those of sequence parallelism too."""
        return layout.world_size

    def worker(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker, cached for all jobs that can share its model."""
        worker = self._cached("actor", _worker, config, job, capacity, rank)
        configure_anew(worker, config)
        return worker

    def critic(self, config: Any, job: Job, capacity: int, rank: Rank) -> Any:
        """verl's worker of the critic, cached in the same way."""
        critic = self._cached("critic", _critic, config, job, capacity, rank)
        _configure_critic_anew(critic, config)
        return critic

    def _cached(
        self,
        role: str,
        made: Callable[[Any, Rank], Any],
        config: Any,
        job: Job,
        capacity: int,
        rank: Rank,
    ) -> Any:
        layout = job.layout
        key = (self.engine, role, layout.cp, layout.format, layout.options, capacity)
        if key not in rank.cache:
            rank.cache[key] = made(config, rank)
        rank.cache[key].gradients.drain()
        return rank.cache[key]


class VerlFsdp2Adapter(VerlFsdpAdapter):
    """verl with FSDP2."""

    engine: ClassVar[str] = "fsdp2"


def _shards(layout: Layout) -> int:
    """The number of shards of a model; -1 is one for each rank."""
    if Option.NOT_SHARDED in layout.options:
        return 1
    return layout.world_size // 2 if Option.HYBRID_SHARDING in layout.options else -1


def _worker(config: Any, rank: Rank) -> Any:
    """verl's worker with its engine, whose optimizer tells the gradient that it steps with."""
    from adapters.verl.model import PASSES

    worker = new_worker(config, rank)
    worker.init_model()
    worker.gradients, worker.passes = _reader(worker.actor.engine), PASSES
    return worker


def _critic(config: Any, rank: Rank) -> Any:
    """verl's worker of the critic, made as its trainer's `_setup` does."""
    from adapters.verl.model import CRITIC_PASSES

    set_what_ray_sets(rank)
    workers, critic = module("workers.engine_workers"), _critic_config(config)
    worker = workers.TrainingWorker(
        workers.TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
    )
    worker.reset()
    worker.gradients, worker.passes = _reader(worker.engine), CRITIC_PASSES
    return worker


def _reader(engine: Any) -> GradientReader:
    from adapters.toolkit.probe import GradientReader

    return GradientReader(engine.optimizer, partial(_whole, engine.module))


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


def _critic_config(config: Any) -> Any:
    """The critic's configuration, with the token budgets that the trainer's `_setup` gives it."""
    critic = module("utils.config").omega_conf_to_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    return critic


def _configure_critic_anew(worker: Any, config: Any) -> None:
    """Give a critic the loss and the micro-batches of another job."""
    critic = _critic_config(config)
    engine = worker.engine_config
    engine.use_dynamic_bsz = critic.engine.use_dynamic_bsz
    engine.max_token_len_per_gpu = critic.engine.max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = critic.engine.micro_batch_size_per_gpu
    worker.set_loss_fn(partial(module("workers.utils.losses").value_loss, config=critic))
