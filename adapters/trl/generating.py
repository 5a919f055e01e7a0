"""Runs of trainers that generate completions of prompts themselves and have them rewarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adapters.trl.model import policy, predicted
from adapters.trl.rollouts import rewards
from adapters.trl.training import Training

if TYPE_CHECKING:
    from datasets import Dataset


def predicted_completions(made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The completion ids in TRL's rows, as the model predicts them."""
    rows = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    return predicted(rows)[:, -made["completion_ids"].shape[1] :]


class GeneratingTraining(Training):
    """One run of a trainer that generates."""

    def arguments(self, config: Any) -> dict[str, Any]:
        """Add the policy, rewards and prompts."""
        return {
            **super().arguments(config),
            "model": policy(self.capacity),
            "reward_funcs": rewards,
            "train_dataset": self._prompts(config),
        }

    def stubs(self) -> dict[str, Any]:
        """The shuffle of a generation before it is cut, which would mix the samples of steps."""
        schedule = self.rollouts.schedule
        if schedule.per_generation <= schedule.micro_batches:
            return {}
        return {"shuffle_sequence_dict": lambda rows: rows}

    def prepare(self, trainer: Any) -> None:
        """Also give the reference policy its outputs."""
        super().prepare(trainer)
        if trainer.ref_model is not None:
            reference = trainer.accelerator.unwrap_model(trainer.ref_model)
            self.give(reference, self.rollouts.batch.reference_log_probs)

    def _prompts(self, config: Any) -> Dataset:
        """A row for each sampled prompt."""
        from datasets import Dataset

        of_generation = config.generation_batch_size // config.num_generations
        return Dataset.from_dict(
            {"prompt": [""] * (of_generation * self.rollouts.schedule.generations)}
        )
