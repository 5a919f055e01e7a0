"""A batch of rollouts in a queue in memory, as verl's rollout servers would fill it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta

from adapters.contract.objective import FROM_REWARDS, OF_CRITIC, OF_TEACHER
from adapters.toolkit.probe import token_table
from adapters.toolkit.settings import doubled_returns, has_critic, has_reference
from adapters.verl.importing import module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract import Job
    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Values

GENERATED = {"num_turns": 2, "min_global_steps": 0, "max_global_steps": 0}
"""Columns that rollout workers log with a sample: two turns, generated with the initial weights."""


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """Outputs of models on rollouts, given by the job instead of computed."""

    batch: ProbedBatch
    job: Job

    def position_values(self, values: Sequence[Values], data: Any) -> Any:
        """Values of response tokens at the row positions that predict them: jagged."""
        of_token = token_table(self.batch, values)
        return torch.nested.as_nested_tensor(
            [of_token[ids + 1] for ids in data.unbind()], layout=torch.jagged
        )


def trainer_state(config: Any, job: Job) -> dict[str, Any]:
    """The attributes of both trainers that their constructors would set."""
    control = module("trainer.ppo.core_algos").get_kl_controller(config.algorithm.kl_ctrl)
    return {
        "config": config,
        "use_critic": has_critic(job),
        "use_reference_policy": has_reference(job),
        "kl_ctrl_in_reward": control,
        "ref_in_actor": False,
        "resource_pool_manager": SimpleNamespace(get_n_gpus=lambda: job.layout.world_size),
    }


def queue_of(batch: ProbedBatch, job: Job) -> MemoryQueue:
    """The samples of a batch.

    verl distributes a batch over ranks by length, and each rank cuts its part into mini-batches. If
    a job has several steps, all samples are given the same length: they are then distributed in
    order, and each mini-batch is a step.
    """
    rows = {
        f"{index}_0_0": _row(batch, index, group)
        for index, group in enumerate(batch.groups.tolist())
    }
    if job.objective in OF_TEACHER:
        _add_teacher(rows, ModelOutputs(batch, job))
    tags = {key: _tag(row) for key, row in rows.items()}
    if len(job.steps) > 1:
        tags = {key: tag | {"seq_len": 1} for key, tag in tags.items()}
    return MemoryQueue(rows, tags)


def _row(batch: ProbedBatch, index: int, group: int) -> dict[str, Any]:
    """The fields of a sample in verl's queue."""
    prompt, response = batch.prompts[index], batch.responses[index]
    ids = torch.from_numpy(batch.sequences[index])
    trained = torch.from_numpy(batch.original_masks[index].astype(np.int64))
    return {
        "prompts": torch.from_numpy(prompt),
        "responses": torch.from_numpy(response),
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "response_mask": trained,
        "loss_mask": trained,
        "rm_scores": torch.from_numpy(token_rewards(batch, index)).float(),
        "rollout_log_probs": torch.from_numpy(batch.rollout_log_probs[index]).float(),
        "uid": str(group),
        "num_turns": GENERATED["num_turns"],
    }


def _add_teacher(rows: dict[str, dict[str, Any]], given: ModelOutputs) -> None:
    """Add a teacher's log-probabilities, [sequence, 1], each at the position before its token."""
    ids = _stacked([row["input_ids"] for row in rows.values()])
    of_rows = given.position_values(given.batch.teacher_log_probs, ids).unbind()
    for row, values in zip(rows.values(), of_rows, strict=True):
        row["teacher_logprobs"] = values.float().unsqueeze(-1)
        row["teacher_ids"] = row["input_ids"].int().unsqueeze(-1)


def token_rewards(batch: ProbedBatch, index: int) -> Values:
    """The rewards of a sample's tokens: [response].

    verl puts a sample's reward at its last token. Given advantages or returns take the place of
    rewards.
    """
    if batch.objective in OF_CRITIC:
        return doubled_returns(batch)[index]
    if batch.objective not in FROM_REWARDS:
        return batch.advantages[index]
    rewards = np.zeros(len(batch.responses[index]))
    rewards[-1] = batch.rewards[index]
    return rewards


def _tag(row: Mapping[str, Any]) -> dict[str, int]:
    fields = {"prompt_len": "prompts", "response_len": "responses", "seq_len": "input_ids"}
    return {name: len(row[field]) for name, field in fields.items()} | GENERATED


class MemoryQueue:
    """Keeps the fields of all rows by key, on every rank."""

    def __init__(self, rows: dict[str, dict[str, Any]], tags: dict[str, dict[str, Any]]) -> None:
        self.rows, self.tags = rows, tags

    def batch(self) -> KVBatchMeta:
        """All rows, as the replay buffer returns them."""
        return KVBatchMeta(
            keys=[*self.rows], tags=[*self.tags.values()], partition_id="train", extra_info={}
        )

    def kv_batch_get(
        self,
        keys: Sequence[str],
        partition_id: str | None = None,
        select_fields: Sequence[str] | None = None,
    ) -> TensorDict:
        """Some fields of some rows: jagged tensors, and stacks of anything else."""
        chosen = [self.rows[key] for key in keys]
        names = [name for name in chosen[0] if select_fields is None or name in select_fields]
        fields = {name: _stacked([row[name] for row in chosen]) for name in names}
        return TensorDict(fields, batch_size=len(keys))

    def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str | None = None,
        fields: Any = None,
        tags: Sequence[dict[str, Any]] = (),
    ) -> KVBatchMeta:
        """Add fields, and rows with new keys."""
        for name in fields.keys():  # noqa: SIM118 - iterating over a tensor dictionary gives rows
            for key, value in zip(keys, _rows(fields[name]), strict=True):
                self.rows.setdefault(key, {})[name] = value
        self.tags |= dict(zip(keys, tags, strict=False))
        return KVBatchMeta(
            keys=[*keys],
            tags=[self.tags[key] for key in keys],
            partition_id=partition_id,
            extra_info={},
        )


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return NonTensorStack(*values)


def _rows(field: Any) -> list[Any]:
    if isinstance(field, torch.Tensor):
        return list(field.unbind())
    return list(field.tolist()) if hasattr(field, "tolist") else list(field)
