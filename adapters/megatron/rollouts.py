"""A batch of samples as slime's and miles' rollout side makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract import Unsupported
from adapters.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

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
                **of_rollout_policy,
            },
        )
        for group, rollout, prompt, response, mask, of_rollout_policy in zip(
            groups,
            rollouts,
            batch.prompts,
            batch.responses,
            batch.original_masks,
            _rollout_log_probs(batch),
            strict=True,
        )
    ]


def require_one_sample_per_rollout(batch: ProbedBatch) -> None:
    """For frameworks that know no rollouts.

    Raises:
        Unsupported: some rollout has several samples.
    """
    if any(len(np.unique(step.rollouts)) < step.size for step in batch.steps):
        raise Unsupported("no several samples of one rollout")


def add_columns(
    share: dict[str, Any], batch: ProbedBatch, slice_with_cp: Callable[..., torch.Tensor]
) -> None:
    """Give each sample of a rank's share what its actor would compute: advantages and the like.

    Samples are known by their first token, whatever became of their order. ``slice_with_cp`` takes
    the values of a response, the lengths of sample and response and the width of a padded row, and
    gives what a context-parallel rank holds of the values.
    """
    of_first_token = {int(ids[0]): i for i, ids in enumerate(batch.prompts)}
    owners = [of_first_token[int(ids[0])] for ids in share["tokens"]]
    widths = share.get("max_seq_lens") or [None] * len(owners)
    shapes = [*zip(share["total_lengths"], share["response_lengths"], widths, strict=True)]
    for name, values in _columns(batch).items():
        share[name] = [
            slice_with_cp(torch.from_numpy(values[owner]).float(), *shape)
            for owner, shape in zip(owners, shapes, strict=True)
        ]


def _columns(batch: ProbedBatch) -> dict[str, list[NDArray[np.float64]]]:
    """By sample, what the loss of an objective takes."""
    columns = {"advantages": batch.advantages, "log_probs": batch.old_log_probs}
    if batch.objective in (Objective.KL, Objective.TOGETHER):
        columns["ref_log_probs"] = batch.reference_log_probs
    if batch.objective is Objective.VALUE:
        columns["values"] = [np.zeros(len(values)) for values in batch.returns]
        columns["returns"] = batch.returns
    return columns


def _rollout_log_probs(batch: ProbedBatch) -> list[dict[str, list[float]]]:
    """Each sample's, where the objective takes them."""
    if batch.objective is not Objective.REJECTION:
        return [{}] * len(batch.responses)
    return [{"rollout_log_probs": values.tolist()} for values in batch.rollout_log_probs]


def _numbered(keys: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
