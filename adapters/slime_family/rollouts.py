"""A batch of samples in the form of slime's and miles' rollout side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Job, Unsupported
from adapters.contract.objective import (
    CORRECTIONS,
    FROM_REWARDS,
    OF_VALUES,
    OFF_POLICY,
    PENALISING,
    Objective,
)
from adapters.toolkit.calls import call_supported
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    import torch
    from numpy.typing import NDArray

    from adapters.contract.probed_batch import ProbedBatch

    Columns = dict[str, Any]

    Slicer = Callable[[torch.Tensor, int, int, int | None], torch.Tensor]
    """Slices the values of a response to those on a context-parallel rank. Its further arguments
    are the lengths of sample and response and the width of a padded row."""


def sample_fields(batch: ProbedBatch) -> list[tuple[int, dict[str, Any]]]:
    """Each sample's rollout and shared fields; identifiers are unique over the steps."""
    owners = [(n, i) for n, step in enumerate(batch.steps) for i in range(step.size)]
    groups = _numbered((n, batch.steps[n].groups[i]) for n, i in owners)
    rollouts = _numbered((n, batch.steps[n].rollouts[i]) for n, i in owners)
    columns = batch.prompts, batch.responses, batch.original_masks, _rollout_log_probs(batch)
    rows = zip(groups, rollouts, batch.rewards.tolist(), *columns, strict=True)
    return [
        (
            rollout,
            {
                "group_index": group,
                "tokens": np.concatenate([prompt, response]).tolist(),
                "response_length": len(response),
                "loss_mask": mask.astype(int).tolist(),
                "reward": reward,
                **of_rollout_policy,
            },
        )
        for group, rollout, reward, prompt, response, mask, of_rollout_policy in rows
    ]


def samples(batch: ProbedBatch, sample_class: Any, rollout_field: str | None) -> list[Any]:
    """The batch as a framework's sample objects, with the field that names their rollout."""
    return [
        call_supported(
            sample_class,
            status=sample_class.Status.COMPLETED,
            **{"index": index, rollout_field or "index": rollout},
            **common,
        )
        for index, (rollout, common) in enumerate(sample_fields(batch))
    ]


def of_single_samples(job: Job) -> Job:
    """Returns the job for a version without rollouts of several samples.

    Every sample is then its own rollout. Because options give all prompts the same number of
    rollouts, every sample also becomes its own prompt. Raises `Unsupported` if prompts matter, or
    if the batch is not a multiple of its micro-batches, which Megatron would refuse.
    """
    if all(len(np.unique(step.rollouts)) == step.size for step in job.steps):
        return job
    parts = job.layout.micro_batches if isinstance(job.layout.micro_batches, int) else 1
    is_uneven = any(step.size % (job.layout.dp * parts) for step in job.steps)
    if is_uneven or job.aggregation.mode is Mode.PROMPT_MEAN or job.objective in FROM_REWARDS:
        raise Unsupported("no rollouts of several samples")
    alone = [
        replace(step, groups=np.arange(step.size), rollouts=np.arange(step.size))
        for step in job.steps
    ]
    return replace(job, steps=tuple(alone))


def replace_advantages(actors: ModuleType, job: Job, batch: ProbedBatch, slicer: Slicer) -> None:
    """Replace the function of an actor's module that computes advantages and returns.

    The actor's old log-probabilities are kept unless the objective needs another old policy. In
    checks on the framework's own advantages, its function is called with its inputs.
    """
    current = actors.compute_advantages_and_returns
    original = getattr(current, "original", current)

    def compute_advantages_and_returns(args: Any, rollout_data: Columns, *others: Any) -> None:
        add_columns(rollout_data, _columns(job, batch), batch, slicer)
        if batch.objective in FROM_REWARDS:
            original(args, rollout_data, *others)

    compute_advantages_and_returns.original = original  # type: ignore[attr-defined]
    actors.compute_advantages_and_returns = compute_advantages_and_returns  # type: ignore[attr-defined]


def add_columns(
    share: Columns,
    columns: dict[str, list[NDArray[np.float64]]],
    batch: ProbedBatch,
    slicer: Slicer,
) -> None:
    """Add sliced columns of token values to a rank's share, whose samples may be reordered."""
    import torch

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


def of_steps(gradients: list[Any], job: Job) -> list[Any]:
    """Each step's gradient; summed where a batch size cuts a step of the job into several."""
    if job.configuration.batch_size is None or len(job.steps) > 1:
        return gradients
    return [sum(gradients)]


def _columns(job: Job, batch: ProbedBatch) -> dict[str, list[NDArray[np.float64]]]:
    """The inputs of an objective's loss that the actor does not compute, by sample."""
    if batch.objective in FROM_REWARDS:
        return _inputs_of_advantages(batch)
    columns = {"advantages": batch.advantages, "returns": batch.returns}
    if batch.objective in OFF_POLICY:
        columns["log_probs"] = batch.old_log_probs
    if batch.objective in (Objective.KL, Objective.COMBINED):
        columns["ref_log_probs"] = batch.reference_log_probs
    if job.configuration.kl:
        columns["ref_log_probs"] = batch.old_log_probs
    return columns


def _inputs_of_advantages(batch: ProbedBatch) -> dict[str, list[NDArray[np.float64]]]:
    """The outputs of models that advantages are computed from, by sample."""
    columns = {}
    if batch.objective in PENALISING:
        columns["ref_log_probs"] = batch.reference_log_probs
    if batch.objective in OF_VALUES:
        columns["values"] = batch.values
    return columns


def _rollout_log_probs(batch: ProbedBatch) -> list[dict[str, list[float]]]:
    """The rollout policy's log-probabilities of each sample, if the objective needs them."""
    if batch.objective not in (Objective.REJECTION, *CORRECTIONS, *FROM_REWARDS):
        return [{}] * len(batch.responses)
    return [{"rollout_log_probs": values.tolist()} for values in batch.rollout_log_probs]


def _numbered(keys: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
