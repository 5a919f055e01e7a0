"""A run of `GRPOTrainer`, which takes rollouts and token advantages from its user."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import Metric, Objective
from adapters.toolkit.probe import by_token_id
from adapters.toolkit.settings import gives_advantages
from adapters.trl.grpo.configuration import configured
from adapters.trl.importing import module
from adapters.trl.training import GeneratingTraining, predicted_completions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from adapters.trl.configuration import Settings


class GivenRollouts:
    """Replaces vLLM's engine, which would receive weights; nothing is generated."""

    def __init__(self, **_: Any) -> None:
        """Do nothing: there is no engine to start."""

    def sync_weights(self) -> None:
        """Do nothing: there is no engine to send weights to."""


class GrpoTraining(GeneratingTraining):
    """One run of `GRPOTrainer`; it logs the policy loss separately only with an entropy bonus."""

    path = "trainer.grpo_trainer"
    names = {  # noqa: RUF012 - declared as a class variable
        Metric.POLICY_LOSS: "policy_loss",
        Metric.LOSS: "loss",
        Metric.CLIP_FRACTION: "clip_ratio/region_mean",
        Metric.ENTROPY: "entropy",
        Metric.KL: "kl",
        Metric.REWARD: "reward",
    }

    @property
    def reported(self) -> Mapping[Metric, tuple[float, ...]]:
        """The metrics of each step of the job; a loss of one term is the policy loss."""
        found = {**super().reported}
        if self.job.objective is Objective.COMBINED:  # TRL's policy loss includes the divergence
            del found[Metric.POLICY_LOSS]
            return found
        return {Metric.POLICY_LOSS: found[Metric.LOSS], **found}

    def configured(self, settings: Settings, folder: str) -> Any:
        """A `GRPOConfig`; raises `Refused`."""
        return configured(self.job, settings, folder)

    def stubs(self) -> dict[str, Any]:
        """Also replace vLLM's rollouts by given ones."""
        return super().stubs() | {"VLLMGeneration": GivenRollouts}

    def arguments(self, config: Any) -> dict[str, Any]:
        """Add the user's rollout function."""
        generations = count()
        return {
            **super().arguments(config),
            "rollout_func": lambda *_: self.rollouts.generated(next(generations)),
        }

    def trainer_class(self) -> Any:
        """TRL's trainer, or a subclass that sets given token advantages, which TRL allows."""
        trainer = module(self.path).GRPOTrainer
        if not gives_advantages(self.job):
            return trainer
        advantages = by_token_id(self.rollouts.batch, self.rollouts.batch.advantages)

        class WithAdvantages(trainer):  # type: ignore[misc,valid-type] # loaded when run
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
                made: dict[str, torch.Tensor] = super()._generate_and_score_completions(inputs)
                return made | {"advantages": advantages[predicted_completions(made)]}

        return WithAdvantages
