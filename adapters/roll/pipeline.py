"""ROLL's RLVR pipeline, run on every rank: `run()` takes batches of rollouts to optimizer steps."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from adapters.contract import Refused
from adapters.contract.objective import Metric
from adapters.contract.probed_batch import PADDING_VALUE
from adapters.roll.clusters import Given, Workers
from adapters.roll.configuration import (
    gives_advantages,
    has_critic,
    pipeline_configuration,
    trained_role,
)
from adapters.roll.importing import module
from adapters.roll.rollouts import DOMAIN, Rollouts
from adapters.toolkit.probe import probe_capacity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from adapters.contract import Job, Rank
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.roll.adapter import RollAdapter

NAMES = {
    Metric.POLICY_LOSS: "actor/pg_loss",
    Metric.LOSS: "actor/total_loss",
    Metric.CLIP_FRACTION: "actor/clipfrac",
    Metric.POLICY_KL: "actor/policykl",
    Metric.KL: "actor/kl_loss",
    Metric.REJECTED: "actor/train_infer_final_mask_mean",
}
"""Names of the metrics that ROLL logs of an optimizer step."""

OF_BATCH = {
    Metric.REWARD: "critic/score/mean",
    Metric.ADVANTAGE: "critic/advantages/mean",
    Metric.VALUE: "critic/values/mean",
}
"""Names of the metrics of a batch of rollouts, which is that of one optimizer step."""


class Training:
    """One run of the pipeline, and what was read off it."""

    def __init__(self, batch: ProbedBatch, job: Job, rank: Rank, engine: RollAdapter) -> None:
        self._batch, self._job, self._rank = batch, job, rank
        self._rollouts = Rollouts(batch, job, engine)
        slices = engine.slices(job.layout)
        self._config = pipeline_configuration(job, engine.settings(job), slices)
        capacity = probe_capacity(batch.probe_size)
        self._trained = engine.trained(trained_role(job), self._config, job, capacity, rank)
        self._logs: list[dict[str, float]] = []
        self.gradients: list[NDArray[np.float32]] = []
        self.passes: list[NDArray[np.int64]] = []
        self._run()

    @property
    def reported(self) -> Mapping[Metric, tuple[float | None, ...]]:
        """What the driver logs of each step, the same on all ranks."""
        of_steps = {
            metric: tuple(_signed(metric, log.get(name)) for log in self._logs)
            for metric, name in NAMES.items()
            if any(name in log for log in self._logs)
        }
        [first, *others] = self._logs
        of_batch = {metric: (first.get(name),) for metric, name in OF_BATCH.items() if not others}
        return of_steps | of_batch

    def _run(self) -> None:
        """Run the pipeline, made without its constructor, which starts clusters of Ray."""
        pipelines = module("pipeline.rlvr.rlvr_pipeline")
        pipeline = object.__new__(pipelines.RLVRPipeline)
        vars(pipeline).update(self._state() | self._clusters())
        with self._replaced(pipelines):
            pipeline.run()

    def _state(self) -> dict[str, Any]:
        """What the constructor makes besides clusters."""
        config = self._config
        return {
            "pipeline_config": config,
            "state": module("utils.worker_state").WorkerState(),
            "kl_ctrl": module("utils.kl_controller").get_kl_controller(config.init_kl_coef),
            "running": {},
            "val_dataset": None,
            "resource_manager": None,
            "tracker": SimpleNamespace(log=self._keep),
            "tokenizer": SimpleNamespace(batch_decode=lambda *_, **__: []),
            "domain_batch_size": {DOMAIN: config.rollout_batch_size},
            "generate_schedulers": {DOMAIN: self._scheduler()},
            "val_generate_scheduler": self._scheduler(),
            "model_update_groups": [],
            "do_checkpoint": _nothing,
        }

    def _clusters(self) -> dict[str, Any]:
        """The roles: one is trained, the others are not run."""
        config, batch, by_id = self._config, self._batch, self._rollouts.by_id
        old = Given(config.actor_train, by_id(batch.old_log_probs))
        reference = Given(config.reference, by_id(batch.reference_log_probs))
        clusters: dict[str, Any] = {
            "actor_train": old,
            "actor_infer": Given(config.actor_infer),
            "reward_model_cluster": None,
            "rewards": {},
            "use_ref_model": config.enable_reference,
            "references": {"default": reference},
            "reference": reference,  # the name before the release 0.3.0
        }
        if has_critic(self._job):
            clusters["critic"] = Given(config.critic, self._values())
        role = trained_role(self._job)
        clusters[role] = Workers(self._trained.worker, self._rank, given=clusters[role])
        return clusters

    def _values(self) -> torch.Tensor:
        """The critic's values by token ids, 0 if it is trained on given advantages."""
        by_id = self._rollouts.by_id
        if gives_advantages(self._job):
            return by_id([*map(np.zeros_like, self._batch.values)])
        return by_id(self._batch.values, otherwise=PADDING_VALUE)

    def _scheduler(self) -> Any:
        """Stands for the scheduler of rollouts of a domain: a batch for each step."""

        def get_batch(*, global_step: int, **_: Any) -> Any:
            return self._rollouts.batch_of(global_step)

        ignored = ("pause_sampling", "get_scheduler_state", "shutdown")
        calls: dict[str, Any] = {"get_batch": get_batch, **dict.fromkeys(ignored, _nothing)}
        remote = {name: SimpleNamespace(remote=call) for name, call in calls.items()}
        return SimpleNamespace(**remote)

    def _keep(self, values: dict[str, float], step: int) -> None:
        """Keep what is seen of a step, in its last epoch; raises `Refused` if it is skipped."""
        if values.get("mask/final_mask_sum_eq_0"):
            raise Refused("final_response_mask.sum() == 0! Current step will be skipped.")
        self._logs.append(module("utils.tracking")._strip_metric_tag(values))
        gradients, passes = self._trained.gradients.drain(), self._trained.passes.drain()
        self.gradients += gradients[-1:]
        self.passes += passes[len(passes) - len(passes) // max(len(gradients), 1) :]

    @contextmanager
    def _replaced(self, pipelines: Any) -> Iterator[None]:
        """Let Ray's references be what they refer to, and give advantages if a job does."""
        real = pipelines.compute_token_reward
        of_tokens = self._rollouts.by_id(self._batch.advantages)

        def compute_token_reward(data: Any, *arguments: Any) -> Any:
            data, metrics = real(data, *arguments)
            data.batch["token_level_rewards"] = of_tokens[data.batch["input_ids"]][:, 1:]
            return data, metrics

        with ExitStack() as stack:
            stack.enter_context(mock.patch("ray.get", lambda reference, timeout=None: reference))
            if gives_advantages(self._job):
                given = mock.patch.object(pipelines, "compute_token_reward", compute_token_reward)
                stack.enter_context(given)
            yield


def _nothing(*_: object, **__: object) -> None:
    """Stands for calls of services that are not there."""


def _signed(metric: Metric, value: float | None) -> float | None:
    """ROLL logs the new log-probability minus the old one, and the share of tokens it keeps."""
    if value is None:
        return None
    return {Metric.POLICY_KL: -value, Metric.REJECTED: 1 - value}.get(metric, value)
