"""TRL's trainer, run on every rank: `train()` takes rollouts to the last optimizer step."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from adapters.contract.objective import Metric, Objective
from adapters.engines.accelerate import Watch
from adapters.trl.importing import has_fused_lm_head, module
from adapters.trl.model import policy, predicted, put_probe_in
from adapters.trl.objectives import gives_advantages
from adapters.trl.rollouts import rewards, tokenizer
from adapters.trl.startup import configured

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.trl.objectives import Settings
    from adapters.trl.rollouts import Rollouts

NAMES = {
    Metric.POLICY_LOSS: "policy_loss",
    Metric.LOSS: "loss",
    Metric.CLIP_FRACTION: "clip_ratio/region_mean",
    Metric.ENTROPY: "entropy",
    Metric.KL: "kl",
    Metric.REWARD: "reward",
}
"""Names of the metrics that TRL logs, that of the policy loss beside an entropy bonus alone."""


def predicted_completions(made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The ids of the completions of TRL's rows, as the model predicts them."""
    rows = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    return predicted(rows)[:, -made["completion_ids"].shape[1] :]


class GivenRollouts:
    """In the place of vLLM: it would be sent weights, and is asked for nothing."""

    def __init__(self, **_: Any) -> None:
        """Start nothing."""

    def sync_weights(self) -> None:
        """Send nothing."""


class Training:
    """One run of a trainer, and what was read off it."""

    def __init__(self, job: Job, rollouts: Rollouts, capacity: int, settings: Settings) -> None:
        self.job, self.rollouts = job, rollouts
        self.watch = Watch()
        with tempfile.TemporaryDirectory(prefix="rl-loss-trl-") as folder, self._replaced():
            trainer = self._trainer(configured(job, settings, folder), capacity)
            trainer.train()

    @property
    def gradients(self) -> list[NDArray[np.float32]]:
        """The gradient of each step of the job, as it is trained for the last time."""
        found = self.watch.gradients()
        return [found[index] for index in self.rollouts.schedule.observed]

    @property
    def reported(self) -> Mapping[Metric, tuple[float, ...]]:
        """What is logged of each step of the job."""
        logs = [self.watch.logs[index] for index in self.rollouts.schedule.observed]
        found = {
            metric: tuple(float(log[name]) for log in logs)
            for metric, name in NAMES.items()
            if all(name in log for log in logs)
        }
        if self.job.objective is Objective.COMBINED:  # what TRL calls so has the divergence in it
            del found[Metric.POLICY_LOSS]
            return found
        return {Metric.POLICY_LOSS: found[Metric.LOSS], **found}

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Rollouts that are given in the place of vLLM's, and in their order if of several steps.

        TRL shuffles a generation before it is cut, which would mix the samples of steps.
        """
        grpo = module("trainer.grpo_trainer")
        stubs: dict[str, Any] = {"VLLMGeneration": GivenRollouts}
        if self.rollouts.schedule.per_generation > self.rollouts.schedule.micro_batches:
            stubs["shuffle_sequence_dict"] = lambda rows: rows
        original = {name: getattr(grpo, name) for name in stubs}
        vars(grpo).update(stubs)
        try:
            yield
        finally:
            vars(grpo).update(original)

    def _trainer(self, config: Any, capacity: int) -> Any:
        from transformers import PrinterCallback

        generations = count()
        trainer = self._trainer_class()(
            model=policy(capacity),
            reward_funcs=rewards,
            args=config,
            train_dataset=self._prompts(config),
            processing_class=tokenizer(self.rollouts.end),
            callbacks=[self.watch],
            rollout_func=lambda *_: self.rollouts.generated(next(generations)),
        )
        trainer.remove_callback(PrinterCallback)
        self._give(trainer.model, self.rollouts.batch.old_log_probs)
        self.passes = trainer.model.passes
        if trainer.ref_model is not None:
            self._give(trainer.ref_model, self.rollouts.batch.reference_log_probs)
        return trainer

    def _give(self, model: Any, log_probs: list[NDArray[np.float64]]) -> None:
        """Tell a model what to answer where it is not trained."""
        model.given = self.rollouts.of_tokens(log_probs)
        if has_fused_lm_head():
            put_probe_in(model)

    def _prompts(self, config: Any) -> Any:
        """A row for each prompt that is sampled."""
        from datasets import Dataset

        of_generation = config.generation_batch_size // config.num_generations
        return Dataset.from_dict(
            {"prompt": [""] * (of_generation * self.rollouts.schedule.generations)}
        )

    def _trainer_class(self) -> Any:
        """TRL's trainer, which is told advantages of tokens, as it allows subclasses, if given."""
        trainer = module("trainer.grpo_trainer").GRPOTrainer
        if not gives_advantages(self.job):
            return trainer
        advantages = self.rollouts.of_tokens(self.rollouts.batch.advantages)

        class WithAdvantages(trainer):  # type: ignore[misc,valid-type] # loaded when run
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
                made: dict[str, torch.Tensor] = super()._generate_and_score_completions(inputs)
                return made | {"advantages": advantages[predicted_completions(made)]}

        return WithAdvantages
