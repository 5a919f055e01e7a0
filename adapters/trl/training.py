"""One run of a trainer on this rank: `train()` takes rollouts to the last optimizer step."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import torch

from adapters.engines.accelerate import Watch
from adapters.toolkit.probe import by_token_id
from adapters.trl.importing import has_fused_lm_head, module
from adapters.trl.model import policy, predicted, put_probe_in
from adapters.trl.rollouts import rewards, tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from datasets import Dataset
    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.objective import Metric
    from adapters.trl.configuration import Settings
    from adapters.trl.rollouts import Rollouts


class Training(ABC):
    """One run of a trainer and what was read from it; subclasses choose the trainer."""

    path: ClassVar[str]
    """The trainer's module."""

    names: ClassVar[Mapping[Metric, str]]
    """Names of the metrics that the trainer logs."""

    def __init__(self, job: Job, rollouts: Rollouts, capacity: int, settings: Settings) -> None:
        self.job, self.rollouts, self.capacity = job, rollouts, capacity
        self.watch = Watch()
        with tempfile.TemporaryDirectory(prefix="rl-loss-trl-") as folder, self._replaced():
            trainer = self.trainer_class()(**self.arguments(self.configured(settings, folder)))
            self.prepare(trainer)
            trainer.train()

    @abstractmethod
    def configured(self, settings: Settings, folder: str) -> Any:
        """The trainer's configuration, with a folder for output; raises `Refused`."""

    @abstractmethod
    def trainer_class(self) -> Any:
        """The trainer, or a subclass that sets what the trainer has no argument for."""

    def arguments(self, config: Any) -> dict[str, Any]:
        """The arguments of the trainer's constructor."""
        return {
            "args": config,
            "processing_class": tokenizer(self.rollouts.end),
            "callbacks": [self.watch],
        }

    def stubs(self) -> dict[str, Any]:
        """Replacements for functions and classes of the trainer's module."""
        return {}

    def prepare(self, trainer: Any) -> None:
        """Put the probe into the trainer's model, and record its gradients."""
        from transformers import PrinterCallback

        trainer.remove_callback(PrinterCallback)
        self.watch.trainer = trainer
        self.give(trainer.model, self.rollouts.batch.old_log_probs)
        self.passes = trainer.model.passes

    def give(self, model: Any, log_probs: list[NDArray[np.float64]]) -> None:
        """Set the outputs that a model returns when it is not trained."""
        model.given = by_token_id(self.rollouts.batch, log_probs)
        if has_fused_lm_head():
            put_probe_in(model)

    @property
    def gradients(self) -> list[NDArray[np.float32]]:
        """The gradient of each step of the job, from the last time it is trained."""
        found = self.watch.gradients()
        return [found[index] for index in self.rollouts.schedule.observed]

    @property
    def reported(self) -> Mapping[Metric, tuple[float, ...]]:
        """The metrics of each step of the job."""
        logs = [self.watch.logs[index] for index in self.rollouts.schedule.observed]
        return {
            metric: tuple(float(log[name]) for log in logs)
            for metric, name in self.names.items()
            if all(name in log for log in logs)
        }

    def _replaced(self) -> AbstractContextManager[object]:
        stubs = self.stubs()
        return mock.patch.multiple(module(self.path), **stubs) if stubs else nullcontext()


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


def predicted_completions(made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The completion ids in TRL's rows, as the model predicts them."""
    rows = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    return predicted(rows)[:, -made["completion_ids"].shape[1] :]
