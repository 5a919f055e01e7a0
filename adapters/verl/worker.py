"""verl's workers on this rank, by their roles: the actor and the critic."""

from __future__ import annotations

import pickle
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from adapters.toolkit.worlds import set_what_ray_sets
from adapters.verl.importing import module

if TYPE_CHECKING:
    from adapters.contract import Rank


def new_worker(role: str, config: Any, rank: Rank) -> Any:
    """A role's worker without a model, the critic's as the trainer's `_setup` makes it."""
    set_what_ray_sets(rank)
    workers = module("workers.engine_workers")
    if role == "actor":
        return workers.ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    critic = _critic_config(config)
    return workers.TrainingWorker(
        workers.TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
    )


def made_engine(role: str, worker: Any) -> Any:
    """The engine that a worker makes with its model."""
    if role == "actor":
        worker.init_model()
        return worker.actor.engine
    worker.reset()
    return worker.engine


def configure_anew(role: str, worker: Any, config: Any) -> None:
    """Give a worker the loss and the micro-batches of another job, as it is given its first."""
    losses = module("workers.utils.losses")
    if role == "critic":
        critic = _critic_config(config)
        _set_micro_batches(worker.engine_config, critic.engine)
        worker.set_loss_fn(partial(losses.value_loss, config=critic))
        return
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    actor_config = _as_dataclass(actor)
    actor_config.model_config = worker.actor.model_config
    engine = worker.actor.engine_config
    _set_micro_batches(engine, actor, prefix="ppo_")
    engine.infer_max_token_len_per_gpu = rollout.log_prob_max_token_len_per_gpu
    engine.infer_micro_batch_size_per_gpu = rollout.log_prob_micro_batch_size_per_gpu
    worker.actor.set_loss_fn(partial(losses.ppo_loss, config=actor_config))


def _set_micro_batches(engine: Any, config: Any, prefix: str = "") -> None:
    """Have an engine cut micro-batches as a configuration says, by names with a prefix."""
    engine.use_dynamic_bsz = config.use_dynamic_bsz
    for name in ("max_token_len_per_gpu", "micro_batch_size_per_gpu"):
        setattr(engine, name, getattr(config, f"{prefix}{name}"))


def _critic_config(config: Any) -> Any:
    """The critic's configuration, with the token budgets that the trainer's `_setup` gives it."""
    critic = _as_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    return critic


def _as_dataclass(config: Any) -> Any:
    """A part of the configuration as verl's dataclass, shared by all jobs with the same values."""
    from omegaconf import OmegaConf

    return _dataclass_of(pickle.dumps(OmegaConf.to_container(config)))


@lru_cache(maxsize=256)
def _dataclass_of(config: bytes) -> Any:
    from omegaconf import OmegaConf

    as_dataclass = module("utils.config").omega_conf_to_dataclass
    return as_dataclass(OmegaConf.create(pickle.loads(config)))
