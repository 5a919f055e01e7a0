"""A run of `GRPOTrainer`, which takes rollouts and advantages of tokens from its user."""

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
    """In the place of vLLM: it would be sent weights, and is asked for nothing."""

    def __init__(self, **_: Any) -> None:
        """Start nothing."""

    def sync_weights(self) -> None:
        """Send nothing."""


class GrpoTraining(GeneratingTraining):
    """One run of `GRPOTrainer`; it logs the policy loss apart beside an entropy bonus alone."""

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
        """What is logged of each step of the job; a loss of one term is the policy loss."""
        found = {**super().reported}
        if self.job.objective is Objective.COMBINED:  # what TRL calls so has the divergence in it
            del found[Metric.POLICY_LOSS]
            return found
        return {Metric.POLICY_LOSS: found[Metric.LOSS], **found}

    def configured(self, settings: Settings, folder: str) -> Any:
        """A `GRPOConfig`; raises `Refused`."""
        return configured(self.job, settings, folder)

    def stubs(self) -> dict[str, Any]:
        """Rollouts that are given in the place of vLLM's, too."""
        return super().stubs() | {"VLLMGeneration": GivenRollouts}

    def arguments(self, config: Any) -> dict[str, Any]:
        """The user's function for rollouts, too."""
        generations = count()
        return {
            **super().arguments(config),
            "rollout_func": lambda *_: self.rollouts.generated(next(generations)),
        }

    def trainer_class(self) -> Any:
        """TRL's trainer, which is told advantages of tokens, as it allows subclasses, if given."""
        trainer = module(self.path).GRPOTrainer
        if not gives_advantages(self.job):
            return trainer
        advantages = by_token_id(self.rollouts.batch, self.rollouts.batch.advantages)

        class WithAdvantages(trainer):  # type: ignore[misc,valid-type] # loaded when run
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
                made: dict[str, torch.Tensor] = super()._generate_and_score_completions(inputs)
                return made | {"advantages": advantages[predicted_completions(made)]}

        return WithAdvantages
