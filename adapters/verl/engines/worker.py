"""verl's workers on this rank, as every engine needs them."""

from __future__ import annotations

import pickle
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from adapters.toolkit.worlds import set_what_ray_sets
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
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    actor_config = _as_dataclass(actor)
    actor_config.model_config = worker.actor.model_config
    engine = worker.actor.engine_config
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    engine.infer_max_token_len_per_gpu = rollout.log_prob_max_token_len_per_gpu
    engine.infer_micro_batch_size_per_gpu = rollout.log_prob_micro_batch_size_per_gpu
    worker.actor.set_loss_fn(partial(module("workers.utils.losses").ppo_loss, config=actor_config))


def new_critic(config: Any, rank: Rank) -> Any:
    """The worker of a critic without a model, as the trainer's `_setup` makes it: `reset` does."""
    set_what_ray_sets(rank)
    workers, critic = module("workers.engine_workers"), _critic_config(config)
    return workers.TrainingWorker(
        workers.TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
    )


def configure_critic_anew(worker: Any, config: Any) -> None:
    """Give a critic the loss and the micro-batches of another job."""
    critic = _critic_config(config)
    engine = worker.engine_config
    engine.use_dynamic_bsz = critic.engine.use_dynamic_bsz
    engine.max_token_len_per_gpu = critic.engine.max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = critic.engine.micro_batch_size_per_gpu
    worker.set_loss_fn(partial(module("workers.utils.losses").value_loss, config=critic))


def _critic_config(config: Any) -> Any:
    """The critic's configuration, with the token budgets that the trainer's `_setup` gives it."""
    critic = _as_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    return critic


def _as_dataclass(config: Any) -> Any:
    """A part of the configuration as verl's dataclass, one for all jobs that have the same."""
    from omegaconf import OmegaConf

    return _dataclass_of(pickle.dumps(OmegaConf.to_container(config)))


@lru_cache(maxsize=256)
def _dataclass_of(config: bytes) -> Any:
    from omegaconf import OmegaConf

    as_dataclass = module("utils.config").omega_conf_to_dataclass
    return as_dataclass(OmegaConf.create(pickle.loads(config)))
