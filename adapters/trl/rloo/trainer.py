"""A run of `RLOOTrainer`, which generates itself: a subclass gives it the rollouts."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import Metric
from adapters.toolkit.calls import refusals
from adapters.toolkit.probe import by_token_id
from adapters.toolkit.settings import gives_advantages
from adapters.trl.importing import module
from adapters.trl.training import GeneratingTraining, predicted_completions

if TYPE_CHECKING:
    import torch

    from adapters.trl.configuration import Settings


class RlooTraining(GeneratingTraining):
    """One run of `RLOOTrainer`; its logged clip ratio counts samples instead of tokens."""

    path = "trainer.rloo_trainer"
    names = {  # noqa: RUF012 - declared as a class variable
        Metric.POLICY_LOSS: "loss",
        Metric.ENTROPY: "entropy",
        Metric.REWARD: "reward",
        Metric.DIVERGENCE: "kl",
    }

    def configured(self, settings: Settings, folder: str) -> Any:
        """An `RLOOConfig`; raises `Refused`."""
        with refusals():
            return module("trainer.rloo_config").RLOOConfig(output_dir=folder, **settings)

    def trainer_class(self) -> Any:
        """TRL's trainer with the case's rollouts, and its advantages if they are given."""
        generations = map(self.rollouts.generated, count())
        of_tokens = by_token_id(self.rollouts.batch, self.rollouts.batch.advantages)
        given = gives_advantages(self.job)

        class WithRollouts(module(self.path).RLOOTrainer):  # type: ignore[misc] # loaded when run
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
                self._generation = next(generations)
                rows = zip(inputs, self._generation["reward"], strict=True)
                made: dict[str, torch.Tensor] = super()._generate_and_score_completions(
                    [{**row, "reward": reward} for row, reward in rows]
                )
                of_samples = {"advantages": of_tokens[predicted_completions(made)[:, 0]]}
                return made | of_samples if given else made

            def _tokenize_prompts(self, prompts: list[str]) -> tuple[Any, None, dict[str, Any]]:
                return self._generation["prompt_ids"], None, {}

            def _generate_single_turn(self, *_: Any) -> Any:
                return self._generation["completion_ids"]

        return WithRollouts
