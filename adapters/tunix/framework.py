"""The record of tunix: fields of its configurations, and its documents."""

from __future__ import annotations

from dataclasses import replace

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.shells import OF_VALUES
from adapters.toolkit import settings


def samples_of_prompt(job: Job) -> int:
    """The number of samples of a prompt: the case's if advantages are compared within a prompt.

    Otherwise it is 2, or the size of a micro-batch if that is odd. Raises `Unsupported` if a
    micro-batch would not have whole prompts, or if the number is 1.
    """
    size = generations_of_prompt(job, replace(schedule_of(job), per_generation=1))
    if size < 2:
        raise Unsupported("no num_generations of 1")
    return size


def _prompts(samples: int, job: Job) -> int:
    return samples // samples_of_prompt(job)


def micro_batch(job: Job) -> int:
    """The number of prompts of a micro-batch."""
    schedule = schedule_of(job)
    return _prompts(schedule.micro_batch_size * schedule.ranks, job)


def width(job: Job) -> int:
    """The maximum response length, which is the divisor of `constant`."""
    longest = max(int(step.response_lengths.max()) for step in job.steps)
    width = settings.whole_divisor(job, "max_tokens_to_generate") or longest
    if width < longest and width > 1:
        raise Unsupported(f"no response of {longest} tokens with max_tokens_to_generate={width}")
    return max(width, longest)


def mini_batch(job: Job) -> int:
    """The number of prompts of an optimizer step."""
    return _prompts(settings.samples_per_step(job), job)


def mesh(job: Job) -> tuple[int]:
    """The shape of the mesh of devices."""
    return (job.layout.dp,)


TUNIX = RecordFile("adapters.tunix", settings, globals()).record(OF_VALUES)
