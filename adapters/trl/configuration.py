"""The configuration that all of TRL's trainers share: sizes, and settings without a gradient."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option, Unsupported
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.settings import gives_advantages, rollouts_per_prompt

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.schedule import Schedule

    Settings = dict[str, object]
    """Values by name in TRL's configuration."""

ONE = 1.0
"""The divisor of losses that add the tokens of a sample up."""

FEWEST_GENERATIONS = 2
"""The fewest samples of a prompt that TRL accepts."""


def settings_of_run(schedule: Schedule) -> Settings:
    """The settings that depend neither on the loss nor on how rollouts are generated."""
    return {
        "use_cpu": True,
        "bf16": False,
        "learning_rate": 0.0,
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "per_device_train_batch_size": schedule.micro_batch_size,
        "gradient_accumulation_steps": schedule.micro_batches,
        "max_steps": schedule.optimizer_steps,
    }


def settings_of_generations(job: Job, schedule: Schedule) -> Settings:
    """The settings of trainers that generate; raises `Unsupported`."""
    if schedule.generation_size < FEWEST_GENERATIONS:
        raise Unsupported(f"a generation of {schedule.generation_size} sample: TRL needs 2")
    return {
        **settings_of_run(schedule),
        "shuffle_dataset": False,
        "steps_per_generation": schedule.per_generation,
        "num_iterations": schedule.iterations,
        "num_generations": _generations_of_prompt(job, schedule),
        "mask_truncated_completions": Option.MASKED_TRUNCATION in job.layout.options,
    }


def _generations_of_prompt(job: Job, schedule: Schedule) -> int:
    """The samples of a prompt; all samples of a generation if it has only one prompt."""
    if not gives_advantages(job):
        return _samples_of_prompts(job, schedule)
    return schedule.generation_size if schedule.generation_size % 2 else FEWEST_GENERATIONS


def _samples_of_prompts(job: Job, schedule: Schedule) -> int:
    """The number of samples of every prompt, which must be adjacent in a generation."""
    size = rollouts_per_prompt(job.steps)
    groups = ProbedBatch(job.steps).groups
    for generation in range(schedule.generations):
        ranks = (schedule.samples(generation, rank) for rank in range(schedule.ranks))
        generated = groups[[*chain.from_iterable(ranks)]]
        whole = len(generated) % size == 0
        if not whole or np.ptp(generated.reshape(-1, size), axis=1).any():
            raise Unsupported(f"a generation does not have whole prompts of {size} samples")
    return size
