"""A job as TRL's configuration."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Option, Unsupported
from adapters.contract.objective import CONSTANTS
from adapters.contract.probed_batch import ProbedBatch
from adapters.toolkit.settings import rollouts_per_prompt
from adapters.trl.objectives import (
    BONUS,
    LOSS_TYPES,
    OF_OBJECTIVES,
    OWN_LOSS_TYPES,
    PENALTY,
    gives_advantages,
)
from adapters.trl.schedule import FEWEST_GENERATIONS
from adapters.trl.versions import has_loss_type

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.objectives import Settings
    from adapters.trl.schedule import Schedule


ONE = 1.0
"""The divisor of luspo, which adds the tokens of a sample up."""


def settings(job: Job, schedule: Schedule) -> Settings:
    """The settings of a job; raises `Unsupported`."""
    return {
        **_fixed(),
        **_sizes(job, schedule),
        **_loss(job),
        **_terms(job),
        **OF_OBJECTIVES.get(job.objective, {}),
    }


def _fixed() -> Settings:
    """The settings of all jobs, which change no gradient."""
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
        "shuffle_dataset": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }


def _sizes(job: Job, schedule: Schedule) -> Settings:
    return {
        "per_device_train_batch_size": schedule.micro_batch_size,
        "gradient_accumulation_steps": schedule.micro_batches,
        "steps_per_generation": schedule.per_generation,
        "num_iterations": schedule.iterations,
        "max_steps": schedule.optimizer_steps,
        "num_generations": _generations_of_prompt(job, schedule),
        "mask_truncated_completions": Option.MASKED_TRUNCATION in job.layout.options,
    }


def _generations_of_prompt(job: Job, schedule: Schedule) -> int:
    """The samples of a prompt; those of a generation are one prompt's if that is all it holds."""
    if not gives_advantages(job):
        return _samples_of_prompts(job, schedule)
    return schedule.generation_size if schedule.generation_size % 2 else FEWEST_GENERATIONS


def _samples_of_prompts(job: Job, schedule: Schedule) -> int:
    """The number of samples of every prompt, which must be next to each other in a generation."""
    size = rollouts_per_prompt(job.steps)
    groups = ProbedBatch(job.steps).groups
    for generation in range(schedule.generations):
        ranks = (schedule.samples(generation, rank) for rank in range(schedule.ranks))
        generated = groups[[*chain.from_iterable(ranks)]]
        whole = len(generated) % size == 0
        if not whole or np.ptp(generated.reshape(-1, size), axis=1).any():
            raise Unsupported(f"a generation has no whole prompts of {size} samples")
    return size


def _loss(job: Job) -> Settings:
    """The settings of the loss."""
    chosen: Settings = {"epsilon": CONSTANTS.clip_low, "epsilon_high": CONSTANTS.clip_high}
    if job.configuration.says_mode:
        chosen["loss_type"] = _loss_type(job)
    divisor = _divisor(job)
    return chosen if divisor in (None, "") else chosen | {"max_completion_length": divisor}


def _terms(job: Job) -> Settings:
    """The settings of terms that a configuration adds to the loss."""
    return {
        **(BONUS if job.configuration.entropy else {}),
        **(PENALTY if job.configuration.kl else {}),
    }


def _loss_type(job: Job) -> str:
    mode = job.aggregation.mode
    if job.objective in OWN_LOSS_TYPES:
        own_mode, name = OWN_LOSS_TYPES[job.objective]
        if mode is not own_mode:
            raise Unsupported(f"loss_type={name} is {own_mode} alone")
        return name
    name = "luspo" if job.aggregation.divisor == ONE else LOSS_TYPES[mode]
    if not has_loss_type(name):
        raise Unsupported(f"no loss_type={name}")
    return name


def _divisor(job: Job) -> int | str | None:
    """The divisor as it is typed, else that of the mode; None if it needs none."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    divisor = job.aggregation.divisor
    if divisor is None or divisor == ONE:
        return None
    if not divisor.is_integer():
        raise Unsupported(f"max_completion_length is a number of tokens, {divisor:g} is none")
    return int(divisor)
