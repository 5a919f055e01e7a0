"""The adapter that verl's engines share, from a batch of rollouts to the optimizer's gradient.

Every rank runs the trainer itself, as `trainers` describes. Through verl's own extension points,
the worker builds its engine around our model, which holds the probe.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.contract import Adapter, Description, Framework, Layout, Option, Rank, Settings
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Job, Observation, Unsupported
from adapters.contract.objective import OF_TEACHER, Metric, Objective
from adapters.toolkit.calls import refusals_of_configuration
from adapters.toolkit.settings import has_critic, last_epoch, trained_model
from adapters.toolkit.worlds import cached, observation, set_what_ray_sets
from adapters.verl import importing
from adapters.verl.framework import VERL, legacy_record, uses_legacy_trainer
from adapters.verl.importing import configured, loss_of, module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


OF_PPO = {Option.LEGACY_TRAINER, Option.TWO_EPOCHS}


class VerlAdapter(Adapter):
    """Drives volcengine/verl from 0.7.1 on, the first version with the current engines."""

    name = "verl"
    package = "verl"
    versions = "verl since 0.7.1"
    distribution = "verl"
    tree = ("verl",)
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    recipes = "adapters.verl.recipe:read"
    framework: ClassVar[Framework] = VERL

    @abstractmethod
    def make(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """verl's worker of a role on this rank, the ``actor`` or the ``critic``.

        It collects gradients in ``gradients`` and the model's inputs in ``passes``.
        """

    def worker(self, role: str, config: Any, layout: Layout, capacity: int, rank: Rank) -> Any:
        """The worker of a role, configured; the jobs of a world share matching workers."""
        options = str(getattr(config.actor_rollout_ref.actor, "megatron", None))
        key = self.engine, role, layout.cp, layout.format, layout.options, capacity, options
        worker = cached(rank, key, lambda: self.make(role, config, layout, capacity, rank))
        _configure_anew(role, worker, config)
        return worker

    def load(self, source: Path | None) -> None:
        """Import verl, its engines and its trainer, with the probe."""
        importing.import_verl(source)
        from adapters.verl.model import put_the_probe_in

        put_the_probe_in()

    def describe(self) -> Description:
        """Describe verl by its configuration and its registries."""
        framework = self.framework
        if not importing.has_default_trainer():
            framework = legacy_record(framework)
        names = importing.option_names(framework.always.get("model_engine"))
        found = framework.description(importing.offers, names, importing.default)
        of_loss = module("workers.utils.losses").ppo_loss.__code__.co_consts
        if framework.metrics[Metric.ENTROPY] in of_loss:  # losses log it since January 2026
            return found
        return replace(found, metrics=found.metrics - {Metric.ENTROPY})

    def settings(self, job: Job, dtype: str) -> Settings:
        """The options that train the job with parameters of a dtype.

        Raises `Unsupported` if verl lacks the objective with the job's steps or epochs.
        """
        if job.objective is Objective.REJECTION and len(job.steps) > 1:
            raise Unsupported("no log of rejection for several steps: it is logged once per batch")
        if job.objective is Objective.SFT and {*job.layout.options} & OF_PPO:
            raise Unsupported("no fine-tuning with ppo_epochs and trainer.use_v1, which are PPO's")
        if job.objective in OF_TEACHER and uses_legacy_trainer(job):
            raise Unsupported("no teacher of the legacy trainer is driven")
        return self.framework.settings(job)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train all steps of the batch as the mini-batches of one trainer's step."""
        from adapters.toolkit.probe import SEAM, probe_capacity

        batch = ProbedBatch.of(job)
        SEAM.start(batch)
        capacity = probe_capacity(batch.probe_size + 1)
        of_model = {"actor_rollout_ref.model.override_config.capacity": capacity}
        with rank.framework(), refusals_of_configuration(job):
            config = configured({**of_model, **self.settings(job, rank.dtype)})
            roles = ("actor", "critic") if has_critic(job) else ("actor",)
            workers = {
                role: self.worker(role, config, job.layout, capacity, rank) for role in roles
            }
            reported = _training(job)(config, workers, batch, job)
        trained = workers[trained_model(job, "actor")]
        passes = last_epoch(trained.passes.drain(), job)
        gradients = last_epoch(trained.gradients.drain(), job)
        return observation(batch, gradients, passes, reported)


def _training(job: Job) -> Callable[..., Mapping[Metric, tuple[float | None, ...]]]:
    """The function that drives the trainer of a job."""
    from adapters.verl.trainers import default, legacy, sft

    if job.objective is Objective.SFT:
        return sft.train
    return legacy.train if uses_legacy_trainer(job) else default.train


def new_worker(role: str, config: Any, rank: Rank) -> Any:
    """A role's worker without a model; a critic's worker is made as in the trainer's `_setup`."""
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
    """The engine of a worker, made by the worker together with its model."""
    if role == "actor":
        worker.init_model()
        return worker.actor.engine
    worker.reset()
    return worker.engine


def _configure_anew(role: str, worker: Any, config: Any) -> None:
    """Give a worker the loss and the micro-batches of another job, as for its first job."""
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
    worker.actor.set_loss_fn(loss_of(config, actor_config))


def _set_micro_batches(engine: Any, config: Any, prefix: str = "") -> None:
    """Make an engine cut micro-batches by a configuration's options with this prefix."""
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
