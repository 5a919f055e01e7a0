"""verl's legacy trainer, run on every rank: its own `fit`, on one batch of rollouts.

Its rows are padded to one width. Methods of its worker groups declare how a batch is split over
ranks and how outputs are joined. Older versions have no other trainer.
"""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from verl.single_controller.base import WorkerGroup
from verl.single_controller.base.decorator import MAGIC_ATTR

from adapters.contract import Job, Metric, Unsupported
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.objective import OFF_POLICY
from adapters.toolkit import settings
from adapters.toolkit.calls import refusals
from adapters.toolkit.worlds import all_gather
from adapters.verl.framework import VERL
from adapters.verl.importing import module
from adapters.verl.trainers.rollouts import GENERATED, ModelOutputs, token_rewards, trainer_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch
    from reference.arrays import Integers, Values

TRAINER = "trainer.ppo.ray_trainer"


class DispatchingGroup(WorkerGroup):
    """Calls this rank's worker with its part of a batch, cut by verl's own dispatch."""

    def __init__(self, worker: Any, given: ModelOutputs) -> None:
        resources: Any = None  # resources of Ray, which are not used
        super().__init__(resources)
        self._worker, self._given = worker, given

    @property
    def world_size(self) -> int:
        """The number of ranks; each has one worker."""
        return dist.get_world_size()

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return all_gather(self._worker._query_dispatch_info(mesh))

    def _query_collect_info(self, mesh: str) -> list[bool]:
        return all_gather(self._worker.query_collect_info(mesh))

    def compute_log_prob(self, data: Any) -> Any:
        """The old policy's outputs: the worker's, unless the job gives log-probabilities."""
        output = self._call("compute_log_prob", data)
        if self._given.job.objective in OFF_POLICY:
            given = self._given.position_values(self._given.batch.old_log_probs, data["input_ids"])
            output["log_probs"] = given
        return output

    def compute_ref_log_prob(self, data: Any) -> Any:
        """The reference policy's log-probabilities, which the job gives."""
        return self._outputs("log_probs", self._given.batch.reference_log_probs, data)

    def infer_batch(self, data: Any) -> Any:
        """The critic's values, which the job gives."""
        output = self._outputs("values", settings.given_values(self._given.batch), data)
        return SimpleNamespace(get=lambda: output)

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
        return modes["collect_fn"](self, all_gather(bound(parts[dist.get_rank()])))

    def _outputs(self, name: str, values: Sequence[Values], data: Any) -> TensorDict:
        given = self._given.position_values(values, data["input_ids"])
        return TensorDict({name: given}, batch_size=len(data))


class Loader(list[Any]):
    """The batches of prompts of an epoch, without a sampler that learns from batches."""

    sampler = None


def train(
    config: Any, workers: dict[str, Any], batch: ProbedBatch, job: Job
) -> dict[Metric, tuple[float | None, ...]]:
    """Train on a batch of rollouts by mini-batches, with the arguments of `default.train`."""
    order, per_prompt = _order(job, batch), config.actor_rollout_ref.rollout.n
    ids = iter(batch.groups[order][::per_prompt].tolist())
    logged: dict[str, Any] = {}
    log = SimpleNamespace(log=lambda data, step: logged.update(data))
    module("utils.tracking").Tracking = lambda **_: log
    module("utils.ray_utils").parallel_put = _copied_parts
    module(TRAINER).uuid = SimpleNamespace(uuid4=lambda: next(ids))
    given = ModelOutputs(batch, job)
    groups = {role: DispatchingGroup(worker, given) for role, worker in workers.items()}
    trainer = _trainer(config, job, groups)
    trainer.train_dataloader.append({"prompt": torch.zeros(len(order) // per_prompt)})
    generate = partial(_generated, batch, order, config)
    trainer.async_rollout_manager = SimpleNamespace(generate_sequences=generate)
    of_steps = _kept_metrics(trainer)
    trainer.fit()
    return VERL.reported([logged]) | _reported(of_steps, job)


def _copied_parts(parts: Sequence[Any], max_workers: int | None = None) -> list[Any]:
    """The parts of a batch, copied as if Ray had sent them to another process."""
    return [pickle.loads(pickle.dumps(part)) for part in parts]


def _order(job: Job, batch: ProbedBatch) -> Integers:
    """The order of a batch's samples: by prompt or, for several steps, by rank and step.

    Each rank cuts its own part of the batch into mini-batches, so each part must hold samples of
    every step. verl's balancing would mix the samples of steps, so it is off for several steps.
    """
    if len(job.steps) == 1:
        return np.argsort(batch.groups, kind="stable")
    return settings.dealt(settings.shares(job))


def _trainer(config: Any, job: Job, groups: dict[str, DispatchingGroup]) -> Any:
    """verl's trainer, without the services that its constructor starts, for one batch."""
    config.trainer.update(val_before_train=False, total_epochs=1, save_freq=-1, test_freq=-1)
    config.trainer.balance_batch = len(job.steps) == 1
    trainer = object.__new__(module(TRAINER).RayPPOTrainer)
    vars(trainer).update(
        trainer_state(config, job),
        use_rm=False,
        use_teacher_policy=False,
        train_dataset=None,
        train_dataloader=Loader(),
        total_training_steps=1,
        actor_rollout_wg=groups["actor"],
        ref_policy_wg=groups["actor"],
        critic_wg=groups.get("critic"),
        checkpoint_manager=SimpleNamespace(
            update_weights=lambda step: None, sleep_replicas=lambda: None
        ),
        distillation_config=None,
        use_prefix_grouper=False,
        use_legacy_worker_impl="disable",
        _load_checkpoint=lambda: None,
        _dump_executor=SimpleNamespace(_shutdown=False),
        _shutdown_dump_executor=lambda: None,
    )
    # Here verl refuses samples that ranks do not divide, with a message that has only numbers.
    trainer._balance_batch = refusals()(trainer._balance_batch)
    return trainer


def _kept_metrics(trainer: Any) -> dict[str, Any]:
    """A dictionary that will get the metrics of all mini-batches from the actor's update."""
    kept: dict[str, Any] = {}
    update = trainer._update_actor

    def updated(batch: Any) -> Any:
        output = update(batch)
        kept.update(deepcopy(output.meta_info["metrics"]))
        return output

    trainer._update_actor = updated
    return kept


def _generated(batch: ProbedBatch, order: Integers, config: Any, _: Any) -> Any:
    """The samples in verl's layout: prompts padded on the left, responses on the right.

    Responses have the configured width, which verl divides by if no divisor is set.
    """
    rows = partial(_rows, order=order, width=config.data.max_response_length)
    prompts = _rows([ids[::-1] for ids in batch.prompts], order=order, width=0).flip(1)
    responses = rows(batch.responses)
    ids = torch.cat([prompts, responses], dim=1)
    attended = (ids != PADDING_ID).long()
    rewards = [token_rewards(batch, index) for index in range(len(order))]
    fields = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": ids,
        "attention_mask": attended,
        "position_ids": (attended.cumsum(1) - 1).clamp(min=0),
        "response_mask": rows([mask.astype(np.int64) for mask in batch.original_masks]),
        "rm_scores": rows(rewards).float(),
        "multi_modal_inputs": np.array([{} for _ in order], dtype=object),
        "__num_turns__": np.full(len(order), GENERATED["num_turns"]),
    }
    if config.actor_rollout_ref.rollout.calculate_log_probs:
        fields["rollout_log_probs"] = rows(batch.rollout_log_probs).float()
    return module("protocol").DataProto.from_single_dict(fields, meta_info={"timing": {}})


def _rows(values: Sequence[NDArray[Any]], order: Integers, width: int) -> torch.Tensor:
    """Values of samples in an order, padded on the right with 0: [samples, at least ``width``]."""
    rows = pad_sequence([torch.from_numpy(values[i].copy()) for i in order], batch_first=True)
    return pad(rows, (0, max(width - rows.shape[1], 0)))


def _reported(metrics: dict[str, Any], job: Job) -> dict[Metric, tuple[float, ...]]:
    """The actor's logged metrics: the numbers of each step, as the trainer reduces them."""
    names = {
        metric: name if name.startswith("actor/") else f"actor/{name}"
        for metric, name in VERL.metrics.items()
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

    Before 0.7.1, the numbers of all steps are in one list, or in a metric object that also has
    their reduction.
    """
    values, steps = getattr(logged, "values", logged), len(job.steps)
    numbers = settings.last_epoch(values, job)
    if len(numbers) != steps > 1 and not isinstance(job.layout.micro_batches, int):
        raise Unsupported("this version's log does not separate the steps of several mini-batches")
    parts = [part.tolist() for part in np.split(np.array(numbers), steps)]
    if values is logged:
        return parts
    of_steps = [logged.init_list() for _ in parts]
    for of_step, part in zip(of_steps, parts, strict=True):
        of_step.extend(part)
    return of_steps
