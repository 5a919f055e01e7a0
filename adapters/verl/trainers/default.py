"""verl's default trainer, run on every rank.

Its own `_step_once` takes a batch of rollouts from the replay buffer to the last optimizer step,
and its `_compute_metrics` logs the batch. The batch is kept in memory, and the worker groups call
this rank's workers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from adapters.contract.objective import Metric
from adapters.contract.probed_batch import PADDING_ID
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import has_critic, has_reference
from adapters.toolkit.worlds import numbers
from adapters.verl.importing import module
from adapters.verl.objectives import GIVEN
from adapters.verl.trainers.rollouts import Given, queue_of
from adapters.verl.trainers.worker_groups import ActorGroup, CriticGroup

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.contract.probed_batch import ProbedBatch
    from adapters.verl.trainers.rollouts import MemoryQueue

TRAINER = "trainer.ppo.v1.trainer_base"
PADDING = "trainer.ppo.padding_utils"

NAMES_OF_ROLLOUTS = {
    Metric.REWARD: "critic/rewards/mean",
    Metric.RESPONSE_LENGTH: "response_length/mean",
    Metric.ADVANTAGE: "critic/advantages/mean",
    Metric.VALUE: "critic/values/mean",
    Metric.DIVERGENCE: "actor/reward_kl_penalty",
    Metric.REJECTED: "rollout_corr/rollout_rs_masked_fraction",
}
"""Names of the metrics that verl's trainer logs about a batch of rollouts."""


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
    queue, given = queue_of(batch, job), Given(batch, job)
    for path in (TRAINER, PADDING):
        module(path).tq = queue
    module(TRAINER).ray = SimpleNamespace(get=lambda futures: futures)
    module(PADDING).uuid = SimpleNamespace(uuid4=lambda: UUID(int=0))
    actor = ActorGroup(workers["actor"], queue, given)
    trainer = _trainer(config, job, queue, actor)
    if has_critic(job):
        trainer.critic_wg = CriticGroup(workers["critic"], queue, given)
    of_rollouts = numbers(NAMES_OF_ROLLOUTS, [_one_step(trainer, queue)])
    return actor.reported | of_rollouts


def _trainer(config: Any, job: Job, queue: MemoryQueue, actor: ActorGroup) -> Any:
    """verl's trainer, without the services that its constructor starts."""
    trainer = object.__new__(module("trainer.ppo.v1.trainer_sync").PPOTrainerSync)
    algorithms = module("trainer.ppo.core_algos")
    vars(trainer).update(
        config=config,
        use_critic=has_critic(job),
        use_reference_policy=has_reference(job),
        kl_ctrl_in_reward=algorithms.get_kl_controller(config.algorithm.kl_ctrl),
        ref_in_actor=False,
        global_steps=1,
        curr_step_profile=False,
        tokenizer=SimpleNamespace(eos_token_id=PADDING_ID),
        replay_buffer=SimpleNamespace(sample=lambda **_: (queue.batch(), {})),
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]),
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: job.layout.world_size),
        distillation_config=None,
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
