"""verl's worker on this rank, as every engine needs it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from adapters.toolkit.launching import set_what_ray_sets
from adapters.verl.importing import module

if TYPE_CHECKING:
    from adapters.contract import Rank


def new_worker(config: Any, rank: Rank) -> Any:
    """verl's worker without a model: its `init_model` makes the engine."""
    set_what_ray_sets(rank)
    workers = module("workers.engine_workers")
    return workers.ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")


def configure_anew(worker: Any, config: Any) -> None:
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
