"""Drives TRL's trainers on this rank: `train()` runs from rollouts to the last optimizer step."""

from __future__ import annotations

import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from adapters.contract import Job, Metric, Objective, Settings
from adapters.contract.job import DEFAULT_CONFIGURATION
from adapters.engines.accelerate import Watch
from adapters.engines.generations import Generated
from adapters.engines.pretrained import tokenizer
from adapters.toolkit.calls import nothing, refusals
from adapters.toolkit.probe import token_table
from adapters.toolkit.settings import gives_advantages, yaml
from adapters.trl import model as probed
from adapters.trl.framework import GRPO
from adapters.trl.importing import has_fused_lm_head, module

if TYPE_CHECKING:
    from datasets import Dataset

    from reference.arrays import Gradient, Values


class TrlRollouts(Generated):
    """The samples of a batch, generated on this rank, one generation after another."""

    @property
    def end(self) -> int:
        """The id of the end of text, which no token of the batch has."""
        return self.batch.probe_size

    def generated(self, generation: int) -> dict[str, Any]:
        """The result of a user's rollout function for a generation on this rank."""
        samples, batch = self.schedule.samples(generation, self.rank), self.batch
        return {
            "prompt_ids": [batch.prompts[sample].tolist() for sample in samples],
            "completion_ids": [self._completion(sample) for sample in samples],
            "logprobs": [batch.rollout_log_probs[sample].tolist() for sample in samples],
            "env_mask": [self.generated_mask(sample).tolist() for sample in samples],
            # None if a reward function does not apply to the sample
            "reward": [None if np.isnan(one) else float(one) for one in batch.rewards[samples]],
        }

    def _completion(self, sample: int) -> list[int]:
        """The ids of a sample's response, ended by an end of text unless it is truncated."""
        ids: list[int] = self.batch.responses[sample].tolist()
        return ids if self.is_truncated(sample) else [*ids[:-1], self.end]


def rewards(completions: list[Any], reward: list[float | None], **_: Any) -> list[float | None]:
    """A user's reward function, which returns each sample's given reward."""
    return reward


def quarters(completions: list[Any], reward: list[float | None], **_: Any) -> list[float | None]:
    """A second reward function, which returns a quarter of the reward."""
    return [None if one is None else one / 4 for one in reward]


class TrlTraining:
    """One run of a trainer, with its gradients and logs; subclasses choose the trainer."""

    def __init__(
        self, job: Job, rollouts: TrlRollouts, capacity: int, settings: Settings, classes: Any
    ) -> None:
        self.job, self.rollouts, self.capacity = job, rollouts, capacity
        self.trainer, self.config = classes
        self.watch = Watch()
        with tempfile.TemporaryDirectory(prefix="rl-loss-trl-") as folder, self._replaced():
            with refusals():
                configured = self.configured(settings, folder)
            made = self.trainer_class()(**self.arguments(configured))
            self.prepare(made)
            made.train()

    def configured(self, settings: Settings, folder: str) -> Any:
        """The trainer's configuration, with a folder for output."""
        return self.config(output_dir=folder, **settings)

    def trainer_class(self) -> Any:
        """The trainer, or a subclass that sets values for which the trainer has no argument."""
        return self.trainer

    def arguments(self, config: Any) -> dict[str, Any]:
        """The arguments of the trainer's constructor."""
        # The tokenizer's only words are padding and the end of text.
        processor = tokenizer({"<end>": self.rollouts.end}, "<end>")
        return {"args": config, "processing_class": processor}

    def stubs(self) -> dict[str, Any]:
        """Replacements of functions and classes of the trainer's module."""
        return {}

    def prepare(self, trainer: Any) -> None:
        """Put the probe into the trainer's model, and record its gradients."""
        self.watch.follow(trainer)
        model, batch = trainer.model, self.rollouts.batch
        self.give(model, batch.old_log_probs)
        model.log_prob_table, model.entropy_table = batch.log_prob_table, batch.entropy_table
        self.passes = model.passes

    def give(self, model: Any, log_probs: list[Values]) -> None:
        """Set the outputs that a model returns in forward passes without a gradient."""
        model.given = token_table(self.rollouts.batch, log_probs)
        if self.fuses_lm_head():
            probed.put_probe_in(model)

    def fuses_lm_head(self) -> bool:
        """Whether the model's own forward pass returns log-probabilities."""
        return has_fused_lm_head()

    @property
    def gradients(self) -> list[Gradient]:
        """The gradient of each step of the job, from the last time it is trained."""
        found = self.watch.gradients()
        return [found[index] for index in self.rollouts.schedule.observed]

    @property
    def logs(self) -> list[dict[str, Any]]:
        """The trainer's log of each step of the job."""
        return [self.watch.logs[index] for index in self.rollouts.schedule.observed]

    def _replaced(self) -> AbstractContextManager[object]:
        stubs, home = self.stubs(), sys.modules[self.trainer.__module__]
        return mock.patch.multiple(home, **stubs) if stubs else nullcontext()


class GeneratingTraining(TrlTraining):
    """One run of a trainer that generates."""

    def arguments(self, config: Any) -> dict[str, Any]:
        """Add the policy, rewards and prompts.

        If there are two reward functions, their weighted sum is the reward: half of it, plus twice
        a quarter of it.
        """
        objective = self.job.objective
        return {
            **super().arguments(config),
            "model": probed.policy(self.capacity, has_router=objective is Objective.ROUTER),
            "reward_funcs": [rewards, quarters] if objective is Objective.WEIGHTED else rewards,
            "train_dataset": self._prompts(config),
        }

    def stubs(self) -> dict[str, Any]:
        """Replace the shuffle of a generation, which would mix samples of steps before the cut."""
        schedule = self.rollouts.schedule
        if schedule.per_generation <= schedule.micro_batches:
            return {}
        return {"shuffle_sequence_dict": lambda rows: rows}

    def prepare(self, trainer: Any) -> None:
        """Also give the reference policy its outputs."""
        super().prepare(trainer)
        if trainer.ref_model is not None:
            reference = trainer.accelerator.unwrap_model(trainer.ref_model)
            reference.is_policy = False
            self.give(reference, self.rollouts.batch.reference_log_probs)

    def _prompts(self, config: Any) -> Dataset:
        """A row for each sampled prompt."""
        from datasets import Dataset

        of_generation = config.generation_batch_size // config.num_generations
        prompts = of_generation * self.rollouts.schedule.generations
        return Dataset.from_dict({"prompt": [""] * prompts})


def predicted_completions(made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The completion ids in TRL's rows, as predicted by the model."""
    rows = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    return probed.predicted(rows)[:, -made["completion_ids"].shape[1] :]


class GrpoTraining(GeneratingTraining):
    """One run of `GRPOTrainer`, which takes rollouts and token advantages from its user."""

    def configured(self, settings: Settings, folder: str) -> Any:
        """A `GRPOConfig`.

        The settings of a job's `Configuration` are typed on the command line or in a configuration
        file, which TRL's parser reads.
        """
        if self.job.configuration == DEFAULT_CONFIGURATION:
            return super().configured(settings, folder)
        chosen = {"output_dir": folder, **settings}
        return _parsed(self.job, chosen, Path(folder) / "config.yaml")

    def stubs(self) -> dict[str, Any]:
        """Also replace vLLM's engine, which would receive weights."""
        engine = SimpleNamespace(sync_weights=nothing)
        return super().stubs() | {"VLLMGeneration": lambda **_: engine}

    def arguments(self, config: Any) -> dict[str, Any]:
        """Add the user's rollout function."""
        generations = count()
        return {
            **super().arguments(config),
            "rollout_func": lambda *_: self.rollouts.generated(next(generations)),
        }

    def trainer_class(self) -> Any:
        """TRL's trainer, or a subclass that sets given token advantages, which TRL allows."""
        if not gives_advantages(self.job):
            return self.trainer
        trainer: Any = self.trainer
        given = self.given_advantages

        class GrpoTrainerWithAdvantages(trainer):
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
                made: dict[str, torch.Tensor] = super()._generate_and_score_completions(inputs)
                return made | {"advantages": given(made)}

        return GrpoTrainerWithAdvantages

    def given_advantages(self, made: dict[str, torch.Tensor]) -> torch.Tensor:
        """The case's token advantages for TRL's rows: [rows, width]."""
        of_tokens = token_table(self.rollouts.batch, self.rollouts.batch.advantages)
        return of_tokens[predicted_completions(made)]


class LigerTraining(GrpoTraining):
    """One run of `GRPOTrainer` with ``use_liger_kernel``, which takes one advantage per sample."""

    def prepare(self, trainer: Any) -> None:
        """Put the probe into the functions for which the version uses Liger-Kernel."""
        super().prepare(trainer)
        if hasattr(trainer, "liger_loss"):
            probed.put_probe_in_liger_loss(trainer)
        else:
            probed.put_probe_in_chunks(trainer)

    def given_advantages(self, made: dict[str, torch.Tensor]) -> torch.Tensor:
        """The case's sample advantages for TRL's rows: [rows]."""
        return super().given_advantages(made)[:, 0]

    @property
    def logs(self) -> list[dict[str, Any]]:
        """The trainer's log of each step of the job, by the names of logs without Liger."""
        ratio, of_liger = GRPO.metrics[Metric.CLIP_FRACTION], "clip_ratio"
        return [{ratio: log[of_liger], **log} if of_liger in log else log for log in super().logs]


def _parsed(job: Job, chosen: dict[str, Any], file: Path) -> Any:
    """The configuration from TRL's parser, with defaults for options that are not typed."""
    names = {setting: name for setting, one in GRPO.configurations.items() for name in one.words}
    typed = {
        setting: (name, str(chosen.pop(name))) for setting, name in names.items() if name in chosen
    }
    in_file = {typed[setting] for setting in job.configuration.in_file if setting in typed}
    file.write_text("".join(f"{name}: {yaml(text)}\n" for name, text in in_file) or "{}\n", "utf-8")
    parser = module("scripts.utils").TrlParser(module("trainer.grpo_config").GRPOConfig)
    parser.set_defaults(**chosen)
    options = [f"--{name}={text}" for name, text in typed.values() if (name, text) not in in_file]
    [config] = parser.parse_args_and_config(["--config", str(file), *options])
    return config


class RlooTraining(GeneratingTraining):
    """One run of `RLOOTrainer`, which has no rollout function: a subclass sets the rollouts.

    Its logged clip ratio counts samples instead of tokens.
    """

    def trainer_class(self) -> Any:
        """TRL's trainer with the case's rollouts, and the case's advantages if they are given."""
        generations = map(self.rollouts.generated, count())
        of_tokens = token_table(self.rollouts.batch, self.rollouts.batch.advantages)
        given = gives_advantages(self.job)
        trainer: Any = self.trainer

        class WithRollouts(trainer):
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
