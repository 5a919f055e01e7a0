"""verl's legacy trainer, run on every rank: only its `_update_actor` and `_update_critic`.

Its rows are padded to one width. Methods of its worker groups declare how a batch is split over
ranks and how outputs are joined. Older versions have no other trainer.
"""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from verl.single_controller.base import WorkerGroup
from verl.single_controller.base.decorator import MAGIC_ATTR

from adapters.contract import Unsupported
from adapters.contract.probed_batch import PADDING_ID
from adapters.toolkit.settings import has_reference, trained_model
from adapters.toolkit.worlds import of_all_ranks
from adapters.verl.framework import VERL, before_the_default_trainer
from adapters.verl.importing import module
from adapters.verl.sizes import of_last_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.objective import Metric
    from adapters.contract.probed_batch import ProbedBatch

TRAINER = "trainer.ppo.ray_trainer"
RECORD = before_the_default_trainer(VERL)


class DispatchingGroup(WorkerGroup):
    """Calls this rank's worker with its part of a batch, cut by verl's own dispatch."""

    def __init__(self, worker: Any) -> None:
        resources: Any = None  # Ray's
        super().__init__(resources)
        self._worker = worker

    @property
    def world_size(self) -> int:
        """The number of ranks; each has one worker."""
        return dist.get_world_size()

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return of_all_ranks(self._worker._query_dispatch_info(mesh))

    def _query_collect_info(self, mesh: str) -> list[bool]:
        return of_all_ranks(self._worker.query_collect_info(mesh))

    def update_actor(self, data: Any) -> Any:
        """The metrics of training the actor on a batch."""
        return self._call("update_actor", data)

    def train_mini_batch(self, data: Any) -> Any:
        """The metrics of training the critic on a batch, available immediately."""
        output = self._call("train_mini_batch", data)
        return SimpleNamespace(get=lambda: output)

    def _call(self, method: str, data: Any) -> Any:
        bound = getattr(self._worker, method)
        modes = getattr(bound, MAGIC_ATTR)["dispatch_mode"]
        [parts], _ = modes["dispatch_fn"](self, data)
        return modes["collect_fn"](self, of_all_ranks(bound(parts[dist.get_rank()])))


def train(
    config: Any, workers: dict[str, Any], batch: ProbedBatch, job: Job
) -> dict[Metric, tuple[float, ...]]:
    """Train on a batch of rollouts by mini-batches; returns the actor's logged metrics.

    ``workers`` are this rank's: the ``actor``, and the ``critic`` if there is one. Raises
    `Unsupported` if the objective needs more than a loss.
    """
    _require_objective(job)
    module("utils.ray_utils").parallel_put = _as_sent
    trainer = _trainer(config, workers)
    data = _padded(batch, job, config.data.max_response_length)
    data.meta_info["temperature"] = config.actor_rollout_ref.rollout.temperature
    _order(trainer, data, job)
    if trained_model(job, "actor") == "critic":
        trainer._update_critic(data)
        return {}
    return _reported(trainer._update_actor(data).meta_info["metrics"], job)


def _as_sent(parts: Sequence[Any], max_workers: int | None = None) -> list[Any]:
    """The parts of a batch, copied as if Ray had sent them to another process."""
    return [pickle.loads(pickle.dumps(part)) for part in parts]


def _require_objective(job: Job) -> None:
    if job.objective not in RECORD.objectives:
        raise Unsupported(
            f"the legacy trainer's update of a model, which is entered, has no {job.objective}"
        )
    if not all(step.mask.any() for step in job.steps):
        raise Unsupported(
            "the legacy trainer is entered below its check for batches without active tokens"
        )


def _trainer(config: Any, workers: dict[str, Any]) -> Any:
    """verl's trainer, without the services that its constructor starts."""
    trainer = object.__new__(module(TRAINER).RayPPOTrainer)
    groups = {role: DispatchingGroup(worker) for role, worker in workers.items()}
    vars(trainer).update(
        config=config,
        actor_rollout_wg=groups["actor"],
        critic_wg=groups.get("critic"),
        distillation_config=None,
        use_prefix_grouper=False,
        use_legacy_worker_impl="disable",
    )
    return trainer


def _padded(batch: ProbedBatch, job: Job, width: int) -> Any:
    """The batch in the trainer's layout: prompts padded on the left, responses on the right.

    Responses have the configured ``width``, which verl divides by if no divisor is set.
    """
    rows = partial(_rows, width=width)
    prompts = _rows([ids[::-1] for ids in batch.prompts], width=0).flip(1)
    responses = rows(batch.responses)
    attended = (torch.cat([prompts, responses], dim=1) != PADDING_ID).long()
    fields = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attended,
        "position_ids": (attended.cumsum(1) - 1).clamp(min=0),
        "response_mask": rows([mask.astype(np.int64) for mask in batch.original_masks]),
        "old_log_probs": rows(batch.old_log_probs).float(),
        "advantages": rows(batch.advantages).float(),
        "returns": rows(batch.advantages).float(),
        "values": torch.zeros(responses.shape),
    }
    if has_reference(job):
        fields["ref_log_prob"] = rows(batch.reference_log_probs).float()
    return module("protocol").DataProto.from_single_dict(fields)


def _rows(values: Sequence[NDArray[Any]], width: int) -> torch.Tensor:
    """Values of samples, padded on the right with 0: [samples, at least ``width``]."""
    rows = pad_sequence(
        [torch.from_numpy(of_sample.copy()) for of_sample in values], batch_first=True
    )
    return pad(rows, (0, max(width - rows.shape[1], 0)))


def _order(trainer: Any, data: Any, job: Job) -> None:
    """Deal the samples to ranks: as verl balances them, or each step to all ranks.

    Each rank cuts its part into mini-batches; balancing would mix the samples of steps.
    """
    if len(job.steps) == 1:
        trainer._balance_batch(data, {})
        return
    steps = np.split(np.arange(len(data)), len(job.steps))
    # [steps, ranks, samples] of equal sizes, as in every configuration.
    parts = np.stack([np.split(step, job.layout.dp) for step in steps])
    data.reorder(torch.from_numpy(parts.swapaxes(0, 1).reshape(-1)))


def _reported(metrics: dict[str, Any], job: Job) -> dict[Metric, tuple[float, ...]]:
    """The actor's logged metrics: the numbers of each step, as the trainer reduces them."""
    names = {
        metric: name if name.startswith("actor/") else f"actor/{name}"
        for metric, name in RECORD.metrics.items()
    }
    reduce = module(TRAINER).reduce_metrics
    return {
        metric: tuple(
            float(reduce({name: numbers})[name]) for numbers in numbers_of_steps(metrics[name], job)
        )
        for metric, name in names.items()
        if name in metrics
    }


def numbers_of_steps(logged: Any, job: Job) -> list[Any]:
    """The numbers of each step: one, or in older versions one per micro-batch and rank.

    Before 0.7.1, those of all steps are in one list, or in a metric that knows its reduction.
    """
    values, steps = getattr(logged, "values", logged), len(job.steps)
    numbers = of_last_epoch(values, job)
    if len(numbers) != steps > 1 and not isinstance(job.layout.micro_batches, int):
        raise Unsupported("this version's log does not separate the steps of several mini-batches")
    parts = [part.tolist() for part in np.split(np.array(numbers), steps)]
    if values is logged:
        return parts
    of_steps = [logged.init_list() for _ in parts]
    for of_step, part in zip(of_steps, parts, strict=True):
        of_step.extend(part)
    return of_steps
