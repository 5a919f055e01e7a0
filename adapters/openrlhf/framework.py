"""The record of OpenRLHF: options of `openrlhf.cli.train_ppo_ray`, and OpenRLHF's documents."""

from __future__ import annotations

from functools import partial

from adapters.contract import Job, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import FROM_REWARDS
from adapters.contract.tables import RecordFile
from adapters.engines.shells import DEFAULT_STAGE, PROBED, UNCOMPILED
from adapters.toolkit import settings

LOSS_AGG_MODE = "--actor.loss_agg_mode"
LEVEL = "--algo.advantage.is_correction_level"
KIND = "--algo.advantage.is_correction_mode"


def train_batch(job: Job) -> int:
    """The number of samples of an optimizer step."""
    size, ranks = job.configuration.batch_size or settings.samples_per_step(job), job.layout.dp
    if size % ranks and len(job.steps) > 1:
        raise Unsupported(
            f"OpenRLHF cuts each rank's share of a batch into steps: {size} samples a step over"
            f" {ranks} ranks would mix the samples of several steps"
        )
    return size


def train_batch_of_one_step(job: Job) -> int:
    """The number of samples of an optimizer step that follows a short batch."""
    if len(job.steps) > 1 or job.objective in FROM_REWARDS:
        raise Unsupported(
            "a short batch is looked at before one step, of advantages that are given"
        )
    return train_batch(job)


def micro_batch_size(job: Job) -> int:
    """The number of samples of a micro-batch."""
    return settings.largest_micro_batch(job, train_batch(job))


def prompts(job: Job) -> int:
    """The number of prompts of a batch of rollouts."""
    return sum(step.size for step in job.steps) // settings.rollouts_per_prompt(job)


def target(job: Job) -> float:
    """The target divergence of an adaptive coefficient."""
    return ProbedBatch.of(job).adaptive_coefficient.target


OPENRLHF = RecordFile(
    "adapters.openrlhf",
    settings,
    globals(),
    samples_of_prompt=partial(settings.samples_of_prompt, option="--rollout.n_samples_per_prompt"),
    default_stage=DEFAULT_STAGE,
    # It is set although it equals the default, because the parser has the default as a list.
    default_bounds=(0.5, 5.0),
).record(PROBED, UNCOMPILED)
