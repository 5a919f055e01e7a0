"""The records of SkyRL's engines: SkyRL's options as users type them, and SkyRL's documents.

Options without a section `trainer` or `generator` are below `trainer.algorithm`. Sizes are in
SkyRL's units. SkyRL itself refuses prompts that lack rollouts, and rollouts that do not fill a
micro-batch.
"""

from __future__ import annotations

import numpy as np

from adapters.contract import Job, Unsupported
from adapters.contract.framework import Substitute
from adapters.contract.objective import OF_CRITIC
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
from adapters.toolkit import settings
from reference.aggregation import Mode


def batch_size(job: Job) -> int:
    """The number of prompts of a batch of rollouts."""
    return settings.prompts_per_step(job) * len(job.steps)


def rollouts(job: Job) -> int:
    """The configured number of rollouts per prompt: the largest number that a prompt has."""
    return max(settings.rollouts_of_prompts(job))


def rollouts_of_rank(job: Job) -> int:
    """The number of rollouts of a mini-batch on a data-parallel rank."""
    return settings.prompts_per_step(job) * rollouts(job) // job.layout.dp


def mini_batch_size(job: Job) -> int:
    """The number of prompts of a mini-batch: a step, or the samples that a configuration sets."""
    samples, per_prompt = job.configuration.batch_size, rollouts(job)
    if samples is None:
        return settings.prompts_per_step(job)
    if samples % per_prompt:
        raise Unsupported(
            f"policy_mini_batch_size counts prompts of {per_prompt} samples, and {samples} is not a"
            " multiple of that"
        )
    return samples // per_prompt


def critic_mini_batch_size(job: Job) -> int:
    """The number of prompts of a critic's mini-batch; raises `Unsupported` in `token_mean`.

    A critic's loss has only one reduction.
    """
    if job.objective in OF_CRITIC and job.aggregation.mode is Mode.TOKEN_MEAN:
        raise Unsupported("no token mean of a critic's loss: loss_reduction applies to the policy")
    return settings.prompts_per_step(job)


def micro_batch_size(job: Job) -> int:
    """The number of rollouts of a micro-batch, for the layout's number of micro-batches."""
    assert isinstance(job.layout.micro_batches, int)
    return max(rollouts_of_rank(job) // job.layout.micro_batches, 1)


def is_step_wise(job: Job) -> bool:
    """Whether rollouts have several samples, which SkyRL calls the steps of a trajectory."""
    return any(len(np.unique(step.rollouts)) != step.size for step in job.steps)


def max_seq_len(job: Job) -> float | str | None:
    """The divisor of the mode, or the text that a configuration sets instead."""
    if job.configuration.divisor is not None:
        # SkyRL reads its command line as YAML.
        return settings.yaml(job.configuration.divisor) or None
    return settings.plain_divisor(job)


_FILE = RecordFile("adapters.skyrl", settings, globals(), critic=Substitute("critic"))

SKYRL = _FILE.record(CPU_AS_CUDA)
FSDP = _FILE.variant("fsdp", base=SKYRL)
MEGATRON = _FILE.variant("megatron", PIPELINE_STAGES, ONE_BY_ONE, base=SKYRL)
