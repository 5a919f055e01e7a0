"""One job on this rank: OpenRLHF's actors, and its own `train_step` on batches of rollouts."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.objective import FROM_REWARDS, PENALISING, Metric
from adapters.engines.deepspeed import number_from_zero
from adapters.openrlhf import actors, command_line
from adapters.openrlhf.importing import module
from adapters.openrlhf.rollouts import Rollouts
from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.probe import probe_capacity
from adapters.toolkit.settings import has_critic, has_kl_term, has_reference, trained_model
from adapters.toolkit.worlds import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from adapters.contract import Job, Rank
    from adapters.contract.probed_batch import ProbedBatch

NAMES = {
    Metric.POLICY_LOSS: "policy_loss",
    Metric.CLIP_FRACTION: "ppo_clip_ratio",
    Metric.POLICY_KL: "ppo_kl",
    Metric.ENTROPY: "entropy_loss",
    Metric.KL: "kl",
    Metric.REJECTED: "is_filter_ratio",
}
"""Names of the metrics that OpenRLHF's actor returns of a batch of rollouts."""

NAMES_OF_ROLLOUTS = {Metric.REWARD: "rollout/reward_mean", Metric.DIVERGENCE: "kl"}
"""Names of the metrics of rollouts; the divergence is logged where it is in rewards."""


def logged() -> frozenset[Metric]:
    """The metrics that this version logs; before 0.11.2 it did not count what is dropped."""
    of_corrections = () if command_line.knows(command_line.CORRECTION) else (Metric.REJECTED,)
    return frozenset({*NAMES, *NAMES_OF_ROLLOUTS}.difference(of_corrections))


class Session:
    """OpenRLHF's arguments and actors for a job, made anew for each."""

    def __init__(self, batch: ProbedBatch, job: Job, rank: Rank) -> None:
        self._batch, self._job, self._rank = batch, job, rank
        self._args = command_line.parsed(job, rank.dtype)
        # OpenRLHF sets it where sequences are split, and never back in a process.
        module("models.ring_attn_utils").set_ring_attn_group(None)
        number_from_zero()
        capacity = probe_capacity(batch.probe_size + 1)
        with cuda_on_cpu.redirected():
            made = {"actor": actors.policy(self._args, capacity)}
            if has_critic(job):
                made["critic"] = actors.critic(self._args, capacity)
        self._actors = {role: one.actor for role, one in made.items()}
        self.trained = made[trained_model(job, "actor")]

    def train_short_batch(self) -> None:
        """Train on a micro-batch of each rank, which fill no train batch."""
        self.train(range(self._job.layout.dp * self._args.train.micro_batch_size))
        self.trained.passes.drain()

    def of_last_epoch(self) -> tuple[list[NDArray[np.float32]], list[NDArray[np.int64]]]:
        """The gradient of each step of the last epoch, and the token ids of its forward passes."""
        gradients, passes = self.trained.gradients.drain(), self.trained.passes.drain()
        epochs = self._args.train.max_epochs
        return gradients[-(len(gradients) // epochs) :], passes[-(len(passes) // epochs) :]

    def train(self, samples: range) -> Mapping[str, Any]:
        """Train on samples as a batch of rollouts; returns what is logged, by OpenRLHF's names."""
        rollouts = Rollouts(self._batch, self._job, samples)
        with cuda_on_cpu.redirected():
            status, _ = self._trainer(rollouts).train_step(rollouts.experiences(), 0)
        return status

    def reported(self, logged: Mapping[str, Any]) -> dict[Metric, tuple[float | None, ...]]:
        """The metrics of a batch of rollouts that was trained on, and of each of its steps.

        OpenRLHF logs one mean over all steps of a batch: if there are several, each is trained on
        once more, as a batch of its own.
        """
        sizes = np.cumsum([0, *(step.size for step in self._job.steps)]).tolist()
        several = [range(*ends) for ends in pairwise(sizes)] if len(self._job.steps) > 1 else []
        of_steps = [self.train(samples) for samples in several] or [logged]
        found = numbers(NAMES, of_steps) | numbers(NAMES_OF_ROLLOUTS, [logged])
        return {metric: of for metric, of in found.items() if metric not in self._never_computed}

    def _trainer(self, rollouts: Rollouts) -> Any:
        """The trainer with the groups that OpenRLHF's script starts for these arguments."""
        group = partial(actors.group, rollouts=rollouts, rank=self._rank.index)
        critic, job = self._actors.get("critic"), self._job
        trainer = module("trainer.ppo_trainer").BasePPOTrainer(
            module("utils").get_strategy(self._args),
            group("actor", self._actors["actor"]),
            group("critic", critic) if critic else None,
            None,
            group("reference", None) if has_reference(job) else None,
            None,
            SimpleNamespace(pad_token_id=0, decode=lambda *_, **__: [""]),
        )
        if job.objective not in FROM_REWARDS:
            _give_advantages(trainer.experience_maker, rollouts)
        return trainer

    @property
    def _never_computed(self) -> set[Metric]:
        """Divergences that are logged as 0 where there is no such term."""
        computed = {
            Metric.KL: has_kl_term(self._job),
            Metric.DIVERGENCE: self._job.objective in PENALISING,
        }
        return {metric for metric, is_computed in computed.items() if not is_computed}


def _give_advantages(maker: Any, rollouts: Rollouts) -> None:
    """Put our advantages in the place of OpenRLHF's, which it would compute token by token."""
    compute = maker.compute_advantages_and_returns
    maker.get_cumulative_returns = lambda rewards, *_: rewards
    maker.get_advantages_and_returns = lambda values, rewards, *_: (rewards, rewards)
    maker.compute_advantages_and_returns = lambda experiences: rollouts.given(compute(experiences))
