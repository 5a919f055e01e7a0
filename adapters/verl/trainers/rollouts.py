"""A batch of rollouts as verl's rollout servers put it into the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract.objective import OF_VALUES
from adapters.verl.objectives import token_rewards
from adapters.verl.trainers.queue import MemoryQueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

GENERATED = {"num_turns": 2, "min_global_steps": 0, "max_global_steps": 0}
"""What is logged about how a sample was generated: a user's turn and the model's, by the initial
weights."""


@dataclass(frozen=True, eq=False)
class Given:
    """Outputs of models on rollouts, which the job gives instead."""

    batch: ProbedBatch
    job: Job

    @property
    def values(self) -> list[NDArray[np.float64]]:
        """A critic's values of each sample's tokens: 0 in the check on the critic's loss."""
        if self.job.objective in OF_VALUES:
            return self.batch.values
        return [np.zeros(len(ids)) for ids in self.batch.responses]

    def of_positions(self, values: Sequence[NDArray[np.float64]], data: Any) -> Any:
        """Values of response tokens at the row positions that predict them: jagged."""
        of_token = np.zeros(self.batch.probe_size + 1)
        of_token[np.concatenate(self.batch.responses)] = np.concatenate(values)
        predicted = [torch.from_numpy(of_token[(ids + 1).numpy()]).float() for ids in data.unbind()]
        return torch.nested.as_nested_tensor(predicted, layout=torch.jagged)


def queue_of(batch: ProbedBatch, job: Job) -> MemoryQueue:
    """The samples of a batch.

    verl deals a batch to ranks by length, and each rank cuts its part into mini-batches. If a job
    has several steps, all samples are given the same length: they are then dealt in order, and
    each mini-batch is a step.
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
        "rm_scores": torch.from_numpy(token_rewards(batch, index)).float(),
        "rollout_log_probs": torch.from_numpy(batch.rollout_log_probs[index]).float(),
        "uid": str(group),
        "num_turns": GENERATED["num_turns"],
    }


def _tag(row: Mapping[str, Any]) -> dict[str, int]:
    fields = {"prompt_len": "prompts", "response_len": "responses", "seq_len": "input_ids"}
    return {name: len(row[field]) for name, field in fields.items()} | GENERATED
