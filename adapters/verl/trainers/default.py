"""verl's default trainer, run on every rank.

Its own `_step_once` takes a batch of rollouts from the replay buffer to the last optimizer step,
and its `_compute_metrics` logs the batch.
"""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import torch

from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.objective import OFF_POLICY
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import given_values, has_critic, last_epoch
from adapters.toolkit.worlds import all_gather
from adapters.verl.framework import GIVEN, VERL
from adapters.verl.importing import distillation_of, module
from adapters.verl.trainers.rollouts import ModelOutputs, queue_of, trainer_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Job, Metric
    from adapters.contract.batch.probed_batch import ProbedBatch
    from adapters.verl.trainers.rollouts import MemoryQueue
    from reference.arrays import Values

TRAINER = "trainer.ppo.v1.trainer_base"
PADDING = "trainer.ppo.padding_utils"


class WorkerGroup:
    """Calls this rank's worker with the rows that verl's dispatch sends it.

    ``mesh`` is the name of the mesh that the worker registers, ``engine`` the engine with this
    mesh.
    """

    def __init__(
        self, worker: Any, mesh: str, engine: Any, queue: MemoryQueue, given: ModelOutputs
    ) -> None:
        self._worker, self._mesh, self._engine = worker, mesh, engine
        self._queue, self._given = queue, given
        self._dispatch_info: dict[str, list[int]] = {}

    def _query_dispatch_info(self, role: str) -> list[int]:
        return all_gather(self._worker._query_dispatch_info(role))

    def _call(self, method: str, batch: Any) -> list[tuple[list[str], Any]]:
        """The keys and outputs of all ranks that return outputs, for their parts of the batch."""
        dictionaries = module("utils.tensordict_utils")
        mine = self._worker._query_dispatch_info(self._mesh)
        part = batch.chunk(self._engine.get_data_parallel_size())[mine]
        data = self._queue.kv_batch_get(part.keys)
        for name, value in batch.extra_info.items():
            dictionaries.assign_non_tensor_data(data, name, deepcopy(value))
        output = getattr(self._worker, method)(data)
        is_told = self._worker.query_collect_info(self._mesh)
        told = all_gather((mine, part.keys, output) if is_told else None)
        answers = sorted((one for one in told if one is not None), key=lambda one: one[0])
        return [(keys, output) for _, keys, output in answers]

    def _put(self, name: str, batch: Any, values: Sequence[Values]) -> None:
        """Put the values of response tokens into the queue, as a model would."""
        ids = self._queue.kv_batch_get(batch.keys, select_fields=["input_ids"])["input_ids"]
        self._queue.kv_batch_put(
            batch.keys, fields={name: self._given.position_values(values, ids)}
        )


class ActorGroup(WorkerGroup):
    """The workers of the actor and of the reference policy."""

    def __init__(self, worker: Any, queue: MemoryQueue, given: ModelOutputs) -> None:
        super().__init__(worker, "actor", worker.actor.engine, queue, given)
        self.reported: dict[Metric, tuple[float | None, ...]] = {}

    def compute_log_prob(self, batch: Any) -> Any:
        """The old policy's log-probabilities: the worker's, unless the job gives them."""
        for keys, output in self._call("compute_log_prob", batch):
            tensors = {name: of for name, of in output.items() if isinstance(of, torch.Tensor)}
            self._queue.kv_batch_put(keys, fields=tensors)
        if self._given.job.objective in OFF_POLICY:
            self._put("log_probs", batch, self._given.batch.old_log_probs)
        return batch

    def compute_ref_log_prob(self, batch: Any) -> Any:
        """The reference policy's log-probabilities, which the job gives."""
        self._put("log_probs", batch, self._given.batch.reference_log_probs)
        return batch

    def update_actor(self, batch: Any) -> Any:
        """Train the actor, and keep the metrics of each mini-batch."""
        outputs = [output for _, output in self._call("update_actor", batch)]
        metrics = module("utils.tensordict_utils").get(outputs[0], "metrics")
        self.reported = {
            metric: tuple(map(float, last_epoch(metrics[name], self._given.job)))
            for metric, name in VERL.metrics.items()
            if name in metrics
        }
        return module("protocol").BatchData(outputs).concat()


class CriticGroup(WorkerGroup):
    """The workers of the critic."""

    def __init__(self, worker: Any, queue: MemoryQueue, given: ModelOutputs) -> None:
        super().__init__(worker, "train", worker.engine, queue, given)

    def infer_batch(self, batch: Any) -> Any:
        """The critic's values, which the job gives, available immediately."""
        self._put("values", batch, given_values(self._given.batch))
        return SimpleNamespace(futures=[])

    def train_mini_batch(self, batch: Any) -> Any:
        """Train the critic; its outputs are available immediately."""
        outputs = [output for _, output in self._call("train_mini_batch", batch)]
        return SimpleNamespace(get=module("protocol").BatchData(outputs).concat)


def register_given_advantages() -> None:
    """Register an estimator whose advantages and returns are the token rewards."""

    def given(token_level_rewards: Any, **_: Any) -> tuple[Any, Any]:
        return token_level_rewards, token_level_rewards

    module("trainer.ppo.core_algos").register_adv_est(GIVEN)(given)


def train(
    config: Any, workers: dict[str, Any], batch: ProbedBatch, job: Job
) -> dict[Metric, tuple[float | None, ...]]:
    """Train on a batch of rollouts by mini-batches; returns the logged metrics.

    ``workers`` are this rank's: the ``actor``, and the ``critic`` if there is one.
    """
    queue, given = queue_of(batch, job), ModelOutputs(batch, job)
    for path in (TRAINER, PADDING):
        module(path).tq = queue
    module(TRAINER).ray = SimpleNamespace(get=lambda futures: futures)
    module(PADDING).uuid = SimpleNamespace(uuid4=lambda: UUID(int=0))
    actor = ActorGroup(workers["actor"], queue, given)
    trainer = _trainer(config, job, queue, actor)
    if has_critic(job):
        trainer.critic_wg = CriticGroup(workers["critic"], queue, given)
    return VERL.reported([_one_step(trainer, queue)]) | actor.reported


def _trainer(config: Any, job: Job, queue: MemoryQueue, actor: ActorGroup) -> Any:
    """verl's trainer, without the services that its constructor starts."""
    trainer = object.__new__(module("trainer.ppo.v1.trainer_sync").PPOTrainerSync)
    vars(trainer).update(
        trainer_state(config, job),
        global_steps=1,
        curr_step_profile=False,
        tokenizer=SimpleNamespace(eos_token_id=PADDING_ID),
        replay_buffer=SimpleNamespace(sample=lambda **_: (queue.batch(), {})),
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]),
        distillation_config=distillation_of(config),
        actor_rollout_wg=actor,
        ref_policy_wg=actor,
        _rollout_moe_lb_metrics_accumulator=None,
    )
    # verl refuses a batch without active tokens here.
    trainer._compute_advantage = refusals()(trainer._compute_advantage)
    return trainer


def _one_step(trainer: Any, queue: MemoryQueue) -> dict[str, Any]:
    """Train on the batch; returns the trainer's metrics by verl's names."""
    metrics: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    with module("utils.debug").marked_timer("step", seconds):
        batch = trainer._step_once(metrics, seconds, len(queue.rows))
    trainer._compute_metrics(batch, metrics, seconds, global_steps=1, epoch=0)
    return metrics
