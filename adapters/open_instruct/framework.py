"""The record of open-instruct: fields of its two configurations, and its documents."""

from __future__ import annotations

from adapters.contract import Job, Option, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, OF_DTYPE, OF_VALUES, PROBED, UNCOMPILED
from adapters.open_instruct.packing import packing_of
from adapters.toolkit import settings

STAGES = {Option.ZERO_1: 1, Option.ZERO_2: 2, Option.ZERO_3: 3}
"""Options that choose a stage of ZeRO other than the default, 0."""


def denominator(job: Job) -> str:
    """The divisor of a step's loss: the number of samples, times the divisor of `constant`."""
    return str((job.aggregation.divisor or 1.0) * settings.samples_per_step(job))


def samples_of_prompt(job: Job) -> int:
    """The number of samples of a prompt; 1 if advantages are given."""
    if settings.gives_advantages(job):
        return 1
    if job.layout.cp > 1:
        raise Unsupported("open-instruct's advantages are looked at without Ulysses")
    return settings.samples_of_prompt(job, "num_samples_per_prompt_rollout")


def generations(job: Job) -> int:
    """The number of generations that are trained on."""
    return len(packing_of(job).generations)


def stage(job: Job) -> int:
    """The ZeRO stage: 3 with Ulysses, which supports no other stage; otherwise 0."""
    return 3 if job.layout.cp > 1 else 0


OPEN_INSTRUCT = RecordFile("adapters.open_instruct", settings, globals()).record(
    CPU_AS_CUDA, PROBED, UNCOMPILED, OF_DTYPE, OF_VALUES
)
