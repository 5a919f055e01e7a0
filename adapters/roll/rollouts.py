"""A job's samples as ROLL's scheduler returns a batch of rollouts with their rewards."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract.probed_batch import PADDING_ID
from adapters.roll.configuration import has_rollout_policy, width
from adapters.roll.importing import module

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.roll.adapter import RollAdapter

DOMAIN = "corpus"


class Rollouts:
    """The batch of rollouts of each optimizer step."""

    def __init__(self, batch: ProbedBatch, job: Job, engine: RollAdapter) -> None:
        self._batch, self._job, self._engine = batch, job, engine
        self._width = width(job, engine.slices(job.layout))
        self._ends = [0, *accumulate(step.size for step in job.steps)]

    def batch_of(self, step_index: int) -> Any:
        """The samples of a step, padded on the right: [samples, sequence_length]."""
        batch, of_step = self._batch, slice(*self._ends[step_index : step_index + 2])
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
        if has_rollout_policy(self._job):
            of_rollouts = self.by_id(batch.rollout_log_probs)
            tensors["infer_logprobs"] = of_rollouts[tensors["input_ids"]][:, 1:]
        protocol = module("distributed.scheduler.protocol")
        return protocol.DataProto.from_dict(
            tensors={name: values[of_step].clone() for name, values in tensors.items()},
            non_tensors={"domain": np.full(self._job.steps[step_index].size, DOMAIN, object)},
            meta_info={"metrics": {}},
        )

    def by_id(self, values: Sequence[NDArray[Any]], otherwise: float = 0.0) -> torch.Tensor:
        """Values of response tokens by their ids: [token ids]."""
        table = np.full(self._batch.probe_size, otherwise)
        table[np.concatenate(self._batch.responses)] = np.concatenate(values)
        return torch.from_numpy(table).float()

    def _attended(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each token of a response is attended."""
        if self._engine.attends_to_all(self._job):
            return np.ones_like(mask)
        return _until_the_last(mask)

    def _rows(
        self, of_prompts: Sequence[NDArray[Any]], of_responses: Iterable[NDArray[Any]]
    ) -> torch.Tensor:
        """Values of prompts and of their responses behind them: [samples, sequence_length]."""
        rows = torch.full((len(of_prompts), self._width), float(PADDING_ID))
        for row, *parts in zip(rows, of_prompts, of_responses, strict=True):
            sequence = np.concatenate(parts)
            row[: len(sequence)] = torch.from_numpy(sequence)
        return rows


def _until_the_last(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each token comes before the last active one, or is it."""
    return np.flip(np.maximum.accumulate(np.flip(mask)))
