"""A batch of samples as slime's and miles' rollout side makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract import Unsupported
from adapters.contract.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch

    Columns = dict[str, Any]

    Slicer = Callable[[torch.Tensor, int, int, int | None], torch.Tensor]
    """From values of a response, the lengths of sample and response and the width of a padded row
    to what a context-parallel rank holds of the values."""


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


def advantages(job: Job, batch: ProbedBatch, slicer: Slicer) -> Callable[[Any, Columns], None]:
    """What stands where an actor computes advantages from rewards, log-probabilities and values.

    It finds what the actor has computed by then, of the policy that it trains, and leaves that as
    it is unless an objective takes another old policy.
    """

    def compute_advantages_and_returns(args: Any, rollout_data: Columns) -> None:
        add_columns(rollout_data, _columns(job, batch), batch, slicer)

    return compute_advantages_and_returns


def add_columns(
    share: Columns,
    columns: dict[str, list[NDArray[np.float64]]],
    batch: ProbedBatch,
    slicer: Slicer,
) -> None:
    """Give each sample of a rank's share, in each column, what a rank holds of its response's.

    Samples are known by their first token, whatever became of their order.
    """
    of_first_token = {int(ids[0]): i for i, ids in enumerate(batch.prompts)}
    owners = [of_first_token[int(ids[0])] for ids in share["tokens"]]
    widths = share.get("max_seq_lens") or [None] * len(owners)
    shapes = [*zip(share["total_lengths"], share["response_lengths"], widths, strict=True)]
    device = share["tokens"][0].device
    for name, values in columns.items():
        share[name] = [
            slicer(torch.from_numpy(values[owner]).float().to(device), *shape)
            for owner, shape in zip(owners, shapes, strict=True)
        ]


def _columns(job: Job, batch: ProbedBatch) -> dict[str, list[NDArray[np.float64]]]:
    """By sample, what the loss of an objective takes and the actor does not compute."""
    columns = {"advantages": batch.advantages, "returns": batch.returns}
    if batch.objective is Objective.OFF_POLICY:
        columns["log_probs"] = batch.old_log_probs
    if batch.objective in (Objective.KL, Objective.COMBINED):
        columns["ref_log_probs"] = batch.reference_log_probs
    if job.configuration.kl:
        columns["ref_log_probs"] = batch.old_log_probs
    return columns


def _rollout_log_probs(batch: ProbedBatch) -> list[dict[str, list[float]]]:
    """Each sample's, where the objective takes them."""
    if batch.objective is not Objective.REJECTION:
        return [{}] * len(batch.responses)
    return [{"rollout_log_probs": values.tolist()} for values in batch.rollout_log_probs]


def _numbered(keys: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
