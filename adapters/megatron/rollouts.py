"""A batch of samples as slime's and miles' rollout side makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adapters.probe import ProbedBatch


def sample_fields(batch: ProbedBatch) -> list[tuple[int, dict[str, Any]]]:
    """Each sample's rollout, and what slime's and miles' sample objects have in common.

    Identifiers are unique over the steps of the batch.
    """
    owners = [(n, i) for n, step in enumerate(batch.steps) for i in range(step.size)]
    groups = _numbered((n, batch.steps[n].groups[i]) for n, i in owners)
    rollouts = _numbered((n, batch.steps[n].rollouts[i]) for n, i in owners)
    return [
        (
            rollout,
            {
                "group_index": group,
                "tokens": np.concatenate([prompt, response]).tolist(),
                "response_length": len(response),
                "loss_mask": mask.astype(int).tolist(),
                "reward": 0.0,
            },
        )
        for group, rollout, prompt, response, mask in zip(
            groups, rollouts, batch.prompts, batch.responses, batch.masks, strict=True
        )
    ]


def require_one_sample_per_rollout(batch: ProbedBatch) -> None:
    """For frameworks that know no rollouts.

    Raises:
        Unsupported: some rollout has several samples.
    """
    if any(len(np.unique(step.rollouts)) < step.size for step in batch.steps):
        raise Unsupported("no several samples of one rollout")


def advantages_of(token_ids: Sequence[torch.Tensor], batch: ProbedBatch) -> list[torch.Tensor]:
    """The advantages of samples known by their first token, whatever became of their order."""
    of_first_token = {int(ids[0]): i for i, ids in enumerate(batch.prompts)}
    owners = [of_first_token[int(ids[0])] for ids in token_ids]
    return [torch.from_numpy(batch.advantages[i]).float() for i in owners]


def _numbered(keys: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
