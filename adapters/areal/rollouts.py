"""A step's samples as AReaL's workflows return trajectories, and those that a rank is dealt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.areal.configuration import (
    NORMALISATIONS,
    has_proximal_policy,
    least_micro_batches,
)
from adapters.areal.importing import module
from adapters.contract import Unsupported
from adapters.toolkit.calls import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch


class Rollouts:
    """The trajectories of each optimizer step, one of each sample."""

    def __init__(self, batch: ProbedBatch, job: Job) -> None:
        self._batch, self._job = batch, job

    def steps_of_rank(self, dp_rank: int) -> Iterator[list[dict[str, torch.Tensor]]]:
        """The trajectories of each step that AReaL's controller deals to a data-parallel rank.

        Raises `Refused` if it does not deal so many, and `Unsupported` if the rank gets too few.
        """
        deal = module("infra.controller.train_controller")._dispatch_tensors
        samples = iter(range(len(self._batch.responses)))
        for step in self._job.steps:
            trajectories = [self._trajectory(next(samples)) for _ in range(step.size)]
            if self._job.objective in NORMALISATIONS:
                trajectories = _together(trajectories, step.groups)
            with refusals():
                shares, _ = deal(trajectories, self._job.layout.dp)
            self._require_enough(sum(len(one["rewards"]) for one in shares[dp_rank]))
            yield shares[dp_rank]

    def give_advantages(self, trajectories: Sequence[dict[str, torch.Tensor]]) -> None:
        """Put the job's advantages in the place of AReaL's, which are one for a trajectory.

        So are returns; AReaL's critic has half of the squared error.
        """
        returns = [2 * returns for returns in self._batch.returns]
        for trajectory in trajectories:
            ids = trajectory["input_ids"]
            trajectory["advantages"] = self._laid_out(self._batch.advantages, ids)
            trajectory["returns"] = self._laid_out(returns, ids)

    def _laid_out(self, values: Sequence[NDArray[np.float64]], ids: torch.Tensor) -> torch.Tensor:
        """Values of response tokens, each at the position before its token's: [1, tokens]."""
        of_token = torch.zeros(self._batch.probe_size)
        responses = torch.from_numpy(np.concatenate(self._batch.responses))
        of_token[responses] = torch.from_numpy(np.concatenate(values)).float()
        return of_token[ids].roll(-1, dims=-1)

    def _trajectory(self, index: int) -> dict[str, torch.Tensor]:
        """A prompt and its response: [1, tokens] each, and its reward."""
        batch = self._batch
        prompt, old = batch.prompts[index], batch.old_log_probs[index]
        is_off = has_proximal_policy(self._job)

        def whole(values: NDArray[Any]) -> torch.Tensor:
            padded = np.concatenate([np.zeros(len(prompt), values.dtype), values])
            return torch.from_numpy(padded).unsqueeze(0)

        ids = torch.from_numpy(np.concatenate([prompt, batch.responses[index]])).unsqueeze(0)
        trajectory = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids, dtype=torch.bool),
            "loss_mask": whole(batch.original_masks[index]).int(),
            "logprobs": whole(batch.rollout_log_probs[index] if is_off else old).float(),
            "values": torch.zeros(ids.shape),
            "rewards": torch.tensor([batch.rewards[index]], dtype=torch.float32),
        }
        if is_off:  # computed by a forward pass, at the position before the token's
            trajectory["prox_logp"] = whole(old).float().roll(-1, dims=-1)
        return trajectory

    def _require_enough(self, samples: int) -> None:
        needed = least_micro_batches(self._job.layout)
        if samples < needed:
            raise Unsupported(f"no {needed} micro-batches of {samples} samples of a rank")


def _together(
    trajectories: Sequence[dict[str, torch.Tensor]], groups: NDArray[np.int64]
) -> list[dict[str, torch.Tensor]]:
    """The samples of each prompt as one trajectory, as AReaL's workflows return them."""
    concatenated = module("utils.data").concat_padded_tensors
    return [
        concatenated([trajectories[index] for index in np.flatnonzero(groups == group).tolist()])
        for group in dict.fromkeys(groups.tolist())
    ]
