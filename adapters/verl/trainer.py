"""verl's default trainer, run on every rank.

Its own `_step_once` takes a batch of rollouts from the replay buffer to the last optimizer step.
The batch lies in memory, and the worker group calls this rank's worker.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract.objective import Metric
from adapters.contract.probed_batch import PADDING_ID
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import has_kl_term
from adapters.verl.configuration import GIVEN, gives_old_log_probs
from adapters.verl.importing import module
from adapters.verl.queue import MemoryQueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

TRAINER = "trainer.ppo.v1.trainer_base"
PADDING = "trainer.ppo.padding_utils"

NAMES = {
    Metric.POLICY_LOSS: "actor/pg_loss",
    Metric.LOSS: "loss",
    Metric.CLIP_FRACTION: "actor/pg_clipfrac",
    Metric.POLICY_KL: "actor/ppo_kl",
    Metric.ENTROPY: "actor/entropy_loss",
    Metric.KL: "kl_loss",
}
"""Names of the metrics that verl's worker returns of a mini-batch."""


def register_given_advantages() -> None:
    """Register an estimator whose advantages are the rewards of tokens."""

    def given(token_level_rewards: Any, **_: Any) -> tuple[Any, Any]:
        return token_level_rewards, token_level_rewards

    module("trainer.ppo.core_algos").register_adv_est(GIVEN)(given)


def train(
    config: Any, worker: Any, batch: ProbedBatch, job: Job
) -> dict[Metric, tuple[float, ...]]:
    """Train on a batch of rollouts, mini-batch by mini-batch; returns what is logged of each."""
    queue = _queue(batch, job)
    for path in (TRAINER, PADDING):
        module(path).tq = queue
    trainer = object.__new__(module("trainer.ppo.v1.trainer_sync").PPOTrainerSync)
    group = WorkerGroup(worker, queue, Given(batch, job))
    vars(trainer).update(
        config=config,
        use_critic=False,
        use_reference_policy=has_kl_term(job),
        ref_in_actor=False,
        global_steps=1,
        curr_step_profile=False,
        tokenizer=SimpleNamespace(eos_token_id=PADDING_ID),
        replay_buffer=SimpleNamespace(sample=lambda **_: (queue.batch(), {})),
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]),
        distillation_config=None,
        actor_rollout_wg=group,
        ref_policy_wg=group,
    )
    # It declines a batch without active tokens.
    trainer._compute_advantage = refusals()(trainer._compute_advantage)
    trainer._step_once({}, {}, len(queue.rows))
    return group.reported


@dataclass(frozen=True, eq=False)
class Given:
    """Outputs of models on rollouts, which the job has instead of a model."""

    batch: ProbedBatch
    job: Job

    def log_probs(self, values: Sequence[NDArray[np.float64]], data: Any) -> Any:
        """The log-probabilities at all positions of rows that predict a response's token."""
        of_token = np.zeros(self.batch.probe_size + 1)
        of_token[np.concatenate(self.batch.responses)] = np.concatenate(values)
        predicted = [torch.from_numpy(of_token[(ids + 1).numpy()]).float() for ids in data.unbind()]
        return torch.nested.as_nested_tensor(predicted, layout=torch.jagged)


class WorkerGroup:
    """Calls this rank's worker, in the place of Ray's group of workers in other processes."""

    def __init__(self, worker: Any, queue: MemoryQueue, given: Given) -> None:
        self._worker, self._queue, self._given = worker, queue, given
        self._dispatch_info: dict[str, list[int]] = {}
        self.reported: dict[Metric, tuple[float, ...]] = {}

    def _query_dispatch_info(self, role: str) -> list[int]:
        return _of_all_ranks(self._worker._query_dispatch_info(role))

    def compute_log_prob(self, batch: Any) -> Any:
        """The old policy's log-probabilities: the worker's, unless the job gives them."""
        for keys, output in self._call("compute_log_prob", batch):
            tensors = {name: of for name, of in output.items() if isinstance(of, torch.Tensor)}
            self._queue.kv_batch_put(keys, fields=tensors)
        if gives_old_log_probs(self._given.job):
            self._put_log_probs(batch, self._given.batch.old_log_probs)
        return batch

    def compute_ref_log_prob(self, batch: Any) -> Any:
        """The reference policy's log-probabilities, which are given."""
        self._put_log_probs(batch, self._given.batch.reference_log_probs)
        return batch

    def update_actor(self, batch: Any) -> Any:
        """Train the actor, and keep what is logged of each mini-batch."""
        outputs = [output for _, output in self._call("update_actor", batch)]
        metrics = module("utils.tensordict_utils").get(outputs[0], "metrics")
        self.reported = {
            metric: tuple(map(float, metrics[name]))
            for metric, name in NAMES.items()
            if name in metrics
        }
        return module("protocol").BatchData(outputs).concat()

    def _call(self, method: str, batch: Any) -> list[tuple[list[str], Any]]:
        """The keys and the output of each rank that hands one on, after its part of the batch."""
        dictionaries = module("utils.tensordict_utils")
        mine = self._worker._query_dispatch_info("actor")
        part = batch.chunk(self._worker.actor.engine.get_data_parallel_size())[mine]
        data = self._queue.kv_batch_get(part.keys)
        for name, value in batch.extra_info.items():
            dictionaries.assign_non_tensor_data(data, name, deepcopy(value))
        output = getattr(self._worker, method)(data)
        is_told = self._worker.query_collect_info("actor")
        told = _of_all_ranks((mine, part.keys, output) if is_told else None)
        answers = sorted((one for one in told if one is not None), key=lambda one: one[0])
        return [(keys, output) for _, keys, output in answers]

    def _put_log_probs(self, batch: Any, values: Sequence[NDArray[np.float64]]) -> None:
        ids = self._queue.kv_batch_get(batch.keys, select_fields=["input_ids"])["input_ids"]
        self._queue.kv_batch_put(
            batch.keys, fields={"log_probs": self._given.log_probs(values, ids)}
        )


def _of_all_ranks(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _queue(batch: ProbedBatch, job: Job) -> MemoryQueue:
    """The samples of a batch.

    verl deals a batch to ranks by length, and each rank cuts its part into mini-batches. Where a
    job has several steps, all samples are said to be of one length: they are then dealt out in
    their order, so that each mini-batch is a step.
    """
    rows = {
        f"{index}_0_0": _row(batch, index, group)
        for index, group in enumerate(batch.groups.tolist())
    }
    tags = {key: _tag(row) for key, row in rows.items()}
    if len(job.steps) > 1:
        tags = {key: tag | {"seq_len": 1} for key, tag in tags.items()}
    return MemoryQueue(rows, tags)


def _row(batch: ProbedBatch, index: int, group: int) -> dict[str, Any]:
    """The fields of a sample in verl's queue."""
    prompt, response = batch.prompts[index], batch.responses[index]
    ids = torch.from_numpy(np.concatenate([prompt, response]))
    trained = torch.from_numpy(batch.original_masks[index].astype(np.int64))
    return {
        "prompts": torch.from_numpy(prompt),
        "responses": torch.from_numpy(response),
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "response_mask": trained,
        "loss_mask": trained,
        "rm_scores": torch.from_numpy(batch.advantages[index]).float(),
        "rollout_log_probs": torch.from_numpy(batch.rollout_log_probs[index]).float(),
        "uid": str(group),
    }


def _tag(row: Mapping[str, Any]) -> dict[str, int]:
    fields = {"prompt_len": "prompts", "response_len": "responses", "seq_len": "input_ids"}
    return {name: len(row[field]) for name, field in fields.items()}
