"""ROLL's RLVR pipeline, run on every rank: `run()` takes batches of rollouts to optimizer steps."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract import Refused
from adapters.contract.objective import Metric
from adapters.contract.probed_batch import PADDING_ID, PADDING_VALUE
from adapters.roll.configuration import has_rollout_policy
from adapters.roll.importing import module
from adapters.roll.workers import Given, Workers
from adapters.toolkit.probe import by_token_id
from adapters.toolkit.settings import given_values, gives_advantages, has_critic, trained_model
from adapters.toolkit.worlds import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Rank
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.roll.workers import Trained

DOMAIN = "corpus"

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


class Rollouts:
    """A job's samples as ROLL's scheduler returns the batch of rollouts of each optimizer step."""

    def __init__(
        self,
        batch: ProbedBatch,
        job: Job,
        width: int,
        attended: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
    ) -> None:
        self.batch, self.job = batch, job
        self._width, self._attended = width, attended
        self._ends = [0, *accumulate(step.size for step in job.steps)]

    def batch_of(self, step_index: int) -> Any:
        """The samples of a step, padded on the right: [samples, sequence_length]."""
        batch, of_step = self.batch, slice(*self._ends[step_index : step_index + 2])
        prompts = [*map(np.ones_like, batch.prompts)]
        nothing = [*map(np.zeros_like, batch.prompts)]
        ids = self._rows(batch.prompts, batch.responses)
        tensors = {
            "input_ids": ids.long(),
            "attention_mask": self._rows(prompts, map(self._attended, batch.original_masks)).long(),
            "position_ids": torch.arange(self._width).expand(ids.shape),
            "prompt_mask": self._rows(prompts, map(np.zeros_like, batch.responses)).long(),
            "response_mask": self._rows(nothing, batch.original_masks).long(),
            "prompts": ids[:, :1].long(),
            "responses": ids[:, 1:].long(),
            "scores": torch.from_numpy(batch.rewards).float(),
            "response_level_rewards": torch.from_numpy(batch.rewards).float(),
        }
        if has_rollout_policy(self.job):
            of_rollouts = by_token_id(batch, batch.rollout_log_probs)
            tensors["infer_logprobs"] = of_rollouts[tensors["input_ids"]][:, 1:]
        protocol = module("distributed.scheduler.protocol")
        return protocol.DataProto.from_dict(
            tensors={name: values[of_step].clone() for name, values in tensors.items()},
            non_tensors={"domain": np.full(self.job.steps[step_index].size, DOMAIN, object)},
            meta_info={"metrics": {}},
        )

    def _rows(
        self, of_prompts: Sequence[NDArray[Any]], of_responses: Iterable[NDArray[Any]]
    ) -> torch.Tensor:
        """Values of prompts and of their responses behind them: [samples, sequence_length]."""
        rows = torch.full((len(of_prompts), self._width), float(PADDING_ID))
        for row, *parts in zip(rows, of_prompts, of_responses, strict=True):
            sequence = np.concatenate(parts)
            row[: len(sequence)] = torch.from_numpy(sequence)
        return rows


class Training:
    """One run of the pipeline, and what was read off it."""

    def __init__(self, rollouts: Rollouts, rank: Rank, config: Any, trained: Trained) -> None:
        self._rollouts, self._rank, self._config, self._trained = rollouts, rank, config, trained
        self._batch, self._job = rollouts.batch, rollouts.job
        self._logs: list[dict[str, float]] = []
        self.gradients: list[NDArray[np.float32]] = []
        self.passes: list[NDArray[np.int64]] = []
        self._run()

    @property
    def reported(self) -> Mapping[Metric, tuple[float | None, ...]]:
        """What the driver logs of each step, the same on all ranks."""
        of_steps = {
            metric: tuple(_signed(metric, number) for number in of_steps)
            for metric, of_steps in numbers(NAMES, self._logs).items()
        }
        return of_steps | (numbers(OF_BATCH, self._logs) if len(self._logs) == 1 else {})

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
        config, batch = self._config, self._batch
        old = Given(config.actor_train, by_token_id(batch, batch.old_log_probs))
        reference = Given(config.reference, by_token_id(batch, batch.reference_log_probs))
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
        role = trained_model(self._job, "actor_train")
        clusters[role] = Workers(self._trained.worker, self._rank, given=clusters[role])
        return clusters

    def _values(self) -> torch.Tensor:
        """The critic's values by token ids, 0 if it is trained on given advantages."""
        elsewhere = 0.0 if gives_advantages(self._job) else PADDING_VALUE
        return by_token_id(self._batch, given_values(self._batch), elsewhere)

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
        of_tokens = by_token_id(self._batch, self._batch.advantages)

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
