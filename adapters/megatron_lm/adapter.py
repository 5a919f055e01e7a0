"""The adapter of Megatron-LM's own reinforcement learning."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from adapters.engines.shells import InOneRun, OnMegatron
from adapters.megatron_lm.framework import MEGATRON_LM, OF_SEQUENCES, PER_SEQUENCE
from adapters.toolkit.imports import found
from adapters.toolkit.settings import CommandLine

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Description, Framework, Job, Rank, Settings
    from adapters.contract.batch.probed_batch import ProbedBatch

MODULES = ("train_rl", "gpt_builders", "hybrid_builders", "model_provider")
OF_RL = ("--grpo-", "--rl-")  # prefixes of options of reinforcement learning


class MegatronLmAdapter(OnMegatron, InOneRun):
    """Drives NVIDIA/Megatron-LM: its training loop with the forward step of `train_rl.py`."""

    name = "megatron_lm"
    engine = "megatron"
    package = "megatron"
    versions = "main since May 2026"
    release_tags = "core_"  # tags without this prefix are named after years
    tree = ("megatron", *(f"{name}.py" for name in MODULES))
    dependencies = ("transformers",)
    recipes = "adapters.megatron_lm.recipe:read"
    fills_up = True
    framework: ClassVar[Framework] = MEGATRON_LM

    def load(self, source: Path | None) -> None:
        """Import the trainer, with the Megatron-Core of the same repository."""
        from adapters.megatron_lm.importing import import_training

        import_training(source)

    def describe(self) -> Description:
        """Describe the loaded version by its own parser of options."""
        of_rl = (name for name in self.options.actions if name.startswith(OF_RL))
        return self.record.description(
            self._has, self.options.names_and_choices(of_rl), self.options.default
        )

    @cached_property
    def record(self) -> Framework:
        """The record of the loaded version, with pull request 6113's mode if the version has it."""
        more = PER_SEQUENCE if self._has({OF_SEQUENCES: True}) else {}
        return replace(self.framework, modes={**more, **self.framework.modes})

    def _has(self, settings: Settings) -> bool:
        return settings.keys() <= self.options.actions.keys()

    @cached_property
    def options(self) -> CommandLine:
        """The options of Megatron-LM's own parser."""
        import argparse

        add: Any = found("megatron.training.arguments:add_megatron_arguments")
        return CommandLine.read(add(argparse.ArgumentParser(allow_abbrev=False)))

    def run(self, job: Job, rank: Rank, batch: ProbedBatch, settings: Settings) -> Any:
        """One run of the training loop on one collection of rollouts."""
        from adapters.megatron_lm.driving import train

        return train(job, batch, settings, rank)
