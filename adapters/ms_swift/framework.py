"""The records of ms-swift's trainers: options of its command line, and its documents."""

from __future__ import annotations

from dataclasses import replace

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines import generations, shells
from adapters.engines.trainers import OF_RUNS
from adapters.toolkit import settings


def generating(job: Job) -> generations.Schedule:
    """The schedule of generation, in which sequence-parallel ranks generate separately.

    ms-swift multiplies a user's number of micro-batches by the number of sequence-parallel ranks.
    """
    layout = job.layout
    if not isinstance(layout.micro_batches, int) or layout.micro_batches % layout.cp:
        raise Unsupported(
            f"no {layout.micro_batches} micro-batches on {layout.cp} of Ulysses' ranks"
        )
    ranks, parts = layout.dp * layout.cp, layout.micro_batches // layout.cp
    separate = replace(layout, dp=ranks, cp=1, micro_batches=parts)
    return generations.schedule_of(replace(job, layout=separate))


def generated_of_prompt(job: Job) -> int:
    """The number of samples of a prompt."""
    return generations.generations_of_prompt(job, generating(job))


def divisor(job: Job) -> int | str:
    """The divisor of the mode; empty if the mode has no divisor."""
    return settings.whole_divisor(job, "max_completion_length") or ""


def micro_batch_size(job: Job) -> int:
    """The number of samples of a micro-batch of the trainer on Megatron-Core."""
    if job.layout.cp > 1 and job.layout.format == "bshd":
        raise Unsupported("context_parallel_size with padding_free=False is not driven")
    return generations.schedule_of(job).micro_batch_size


def samples_of_prompt(job: Job) -> int:
    """The number of samples of a prompt; a data-parallel rank must have whole prompts."""
    schedule = generations.schedule_of(job)
    size = 1 if settings.gives_advantages(job) else generations.generations_of_prompt(job, schedule)
    if schedule.per_generation % size:
        raise Unsupported(
            "prompts of a data-parallel rank that are no multiple of micro_batch_size"
        )
    return size


_FILE = RecordFile("adapters.ms_swift", settings, generations, globals(), runs=OF_RUNS)
_ALL = _FILE.record(
    shells.OF_VALUES,
    shells.OF_HUB,
    shells.OF_DTYPE,
    shells.OF_POLICIES,
    shells.OF_PROMPTS,
    shells.NOTHING_LEARNED,
    shells.ZEROED,
)
_ALL = replace(_ALL, options=(*_ALL.options, *shells.GRPO_OPTIONS))

MS_SWIFT = _FILE.variant("on_accelerate", base=_ALL)
MEGATRON = _FILE.variant("megatron", shells.CPU_AS_CUDA, shells.ONE_BY_ONE, base=_ALL)
