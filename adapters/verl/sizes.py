"""The sizes of a batch of rollouts, and how it is cut into mini- and micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract import Job, Option, Unsupported
from adapters.toolkit.settings import micro_batch_size, samples_per_step, token_budget
from adapters.verl.importing import module
from adapters.verl.objectives import ACTOR, ROLLOUT, in_default_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.verl.objectives import Settings

_Seen = TypeVar("_Seen")

CRITIC = "critic"


def of_last_epoch(seen: Sequence[_Seen], job: Job) -> Sequence[_Seen]:
    """The part of ``seen`` that belongs to the last time a batch was trained on."""
    return seen[len(seen) - len(seen) // epochs(job) :]


def epochs(job: Job) -> int:
    """How many times a batch is trained on."""
    return 2 if Option.TWO_EPOCHS in job.layout.options else 1


def sizes(job: Job, divisor: int) -> Settings:
    """The sizes of the batch of rollouts, of mini- and micro-batches, and of the world.

    The samples of a mini-batch are a multiple of ``divisor`` ranks. If all prompts have the same
    number of samples ``n``, verl counts prompts.
    """
    size = _mini_batch_size(job, divisor)
    of_prompt = 1 if job.configuration.batch_size else _samples_of_every_prompt(job, size)
    return {
        "data.train_batch_size": size // of_prompt * len(job.steps),
        f"{ACTOR}.ppo_mini_batch_size": job.configuration.batch_size or size // of_prompt,
        f"{ACTOR}.ppo_epochs": epochs(job),
        f"{ROLLOUT}.n": of_prompt,
        "trainer.n_gpus_per_node": job.layout.world_size,
        "trainer.nnodes": 1,
        **_micro_batches(job, size),
    }


def _mini_batch_size(job: Job, divisor: int) -> int:
    """The samples of a mini-batch, a multiple of ``divisor`` ranks."""
    size = samples_per_step(job.steps)
    if size % divisor and not _is_filled_up(job):
        raise Unsupported(f"{size} samples cannot be split evenly over {divisor} ranks")
    return -(-size // divisor) * divisor


def _is_filled_up(job: Job) -> bool:
    """Whether the trainer adds padding rows because the samples do not fill the ranks.

    They follow all samples, and the legacy trainer adds none. They are not checked if ranks train
    separate models.
    """
    of_one_model = Option.NOT_SHARDED not in job.layout.options
    return len(job.steps) == 1 and of_one_model and in_default_trainer(job)


def _samples_of_every_prompt(job: Job, mini_batch: int) -> int:
    """The number of samples of every prompt, or 1 if prompts or the mini-batch do not fit it."""
    counts = {
        int(count) for step in job.steps for count in np.unique(step.groups, return_counts=True)[1]
    }
    of_prompt = counts.pop()
    return 1 if counts or mini_batch % of_prompt else of_prompt


def _micro_batches(job: Job, mini_batch: int) -> Settings:
    by_tokens = job.layout.micro_batches == "tokens"
    settings: Settings = {
        f"{ACTOR}.use_dynamic_bsz": by_tokens,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": by_tokens,
    }
    if by_tokens:
        budget = _token_budget(job, mini_batch)
        return settings | {
            f"{ACTOR}.ppo_max_token_len_per_gpu": budget,
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu": budget,
        }
    size = micro_batch_size(job, mini_batch // job.layout.dp)
    return settings | {
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": size,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": size,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": size,
    }


def _token_budget(job: Job, mini_batch: int) -> int:
    """The token budget of a micro-batch on each of the ranks that share its sequences."""
    budget = token_budget(job.steps, job.layout.dp)
    if mini_batch > samples_per_step(job.steps):
        padding = module("trainer.ppo.padding_utils")
        # Padding rows are short in versions before 0.9.1.
        budget = max(budget, getattr(padding, "SYNTHETIC_PADDING_SEQ_LEN", 0))
    return -(-budget // job.layout.cp)


def critics_micro_batches(job: Job, divisor: int, engine: str) -> Settings:
    """The micro-batches of a critic, whose engine is configured at path ``engine``.

    The trainer gives its engine one token budget for all purposes, and cuts by tokens unless the
    engine's own configuration says otherwise.
    """
    mini_batch = _mini_batch_size(job, divisor)
    if job.layout.micro_batches == "tokens":
        return {f"{CRITIC}.ppo_infer_max_token_len_per_gpu": _token_budget(job, mini_batch)}
    size = micro_batch_size(job, mini_batch // job.layout.dp)
    return {
        f"{CRITIC}.ppo_micro_batch_size_per_gpu": size,
        f"{engine}.use_dynamic_bsz": False,
        f"{engine}.micro_batch_size_per_gpu": size,
    }
