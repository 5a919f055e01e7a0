"""OpenRLHF's trainer, run on every rank: its own `train_step`, of one batch of rollouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import FROM_REWARDS
from adapters.openrlhf.command_line import has_critic, has_reference
from adapters.openrlhf.groups import group
from adapters.openrlhf.importing import module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.openrlhf.rollouts import Rollouts


def train(args: Any, actors: Mapping[str, Any], rollouts: Rollouts, rank: int) -> dict[str, float]:
    """Train on a batch of rollouts; returns what the trainer logs, by OpenRLHF's names."""
    trainer = _trainer(args, actors, rollouts, rank)
    status, _ = trainer.train_step(rollouts.experiences(), 0)
    return status


def _trainer(args: Any, actors: Mapping[str, Any], rollouts: Rollouts, rank: int) -> Any:
    """The trainer with the groups that OpenRLHF's script starts for these arguments."""
    job = rollouts.job
    trainer = module("trainer.ppo_trainer").BasePPOTrainer(
        module("utils").get_strategy(args),
        group("actor", actors["actor"], rollouts, rank),
        group("critic", actors["critic"], rollouts, rank) if has_critic(job) else None,
        None,
        group("reference", None, rollouts, rank) if has_reference(job) else None,
        None,
        SimpleNamespace(pad_token_id=0, decode=lambda *_, **__: [""]),
    )
    if job.objective not in FROM_REWARDS:
        _give_advantages(trainer.experience_maker, rollouts)
    return trainer


def _give_advantages(maker: Any, rollouts: Rollouts) -> None:
    """Put our advantages in the place of OpenRLHF's, which it would compute token by token."""
    compute = maker.compute_advantages_and_returns
    maker.get_cumulative_returns = lambda rewards, *_: rewards
    maker.get_advantages_and_returns = lambda values, rewards, *_: (rewards, rewards)
    maker.compute_advantages_and_returns = lambda experiences: rollouts.given(compute(experiences))
