"""The record of Megatron-LM: options of `train_rl.py` as users type them, and its documents."""

from __future__ import annotations

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.experts import SHARED, TYPED
from adapters.engines.shells import (
    CPU_AS_CUDA,
    NOTHING_LEARNED,
    ONE_BY_ONE,
    PIPELINE_STAGES,
    ZEROED,
)
from adapters.toolkit import settings
from reference.aggregation import Mode

PER_TOKEN = "--calculate-per-token-loss"
OF_SEQUENCES = "--rl-per-sequence-loss-norm"
PACKED = "--rl-use-sequence-packing"


def micro_batch_size(job: Job) -> int:
    """The number of rows of a micro-batch; 1 if tokens cut micro-batches, as for a packed bin."""
    return settings.largest_micro_batch(job, _rows_asked_for(job))


def one_sample(job: Job) -> int:
    """One row per micro-batch; raises `Unsupported` if a micro-batch has several samples."""
    if job.layout.format == "thd" or micro_batch_size(job) > 1:
        raise Unsupported(
            f"without {PER_TOKEN}, micro-batches of several samples have the mean of their tokens,"
            " which is none of the modes"
        )
    return 1


def _rows_asked_for(job: Job) -> int:
    if settings.gives_advantages(job):
        return settings.samples_per_step(job)
    return _prompts(job) * settings.rollouts_asked_for(job)


def _prompts(job: Job) -> int:
    settings.require_prompts_together(job, "--grpo-group-size repeats each prompt")
    return settings.prompts_per_step(job)


def global_batch_size(job: Job) -> int:
    """The number of rows of a step, including failed episodes that pad the last micro-batches.

    Raises `Unsupported` if a step other than the last one would need padding.
    """
    rows, of_all_ranks = _rows_asked_for(job), micro_batch_size(job) * job.layout.dp
    filled = -(-rows // of_all_ranks) * of_all_ranks
    if filled > rows and (len(job.steps) > 1 or not settings.gives_advantages(job)):
        raise Unsupported(f"--global-batch-size {rows} is no multiple of {of_all_ranks}")
    return filled


def group_size(job: Job) -> int:
    """The number of rollouts that are requested for each prompt."""
    return 1 if settings.gives_advantages(job) else settings.rollouts_asked_for(job)


def prompts_of_collection(job: Job) -> int:
    """The number of prompts of one collection of rollouts."""
    return len(job.steps) * global_batch_size(job) // group_size(job)


def longest_sequence(job: Job) -> int:
    """The longest sequence's length, rounded up to equal slices for context-parallel ranks."""
    lengths = (step.prompt_lengths + step.response_lengths for step in job.steps)
    return _sliced(job, max(int(one.max()) for one in lengths))


def _sliced(job: Job, length: int) -> int:
    """A length, rounded up to a multiple of twice the number of context-parallel ranks."""
    slices = 2 * job.layout.cp
    return -(-length // slices) * slices


def bin_size(job: Job) -> int:
    """The number of tokens of a bin, which holds at least the longest sequence."""
    settings.require_one_step(
        job, "bins, and not samples, are dealt to the optimizer steps of a collection"
    )
    return max(longest_sequence(job), _sliced(job, settings.rank_budget(job)))


def averages(job: Job) -> bool:
    """Whether the collective averages gradients; raises `Unsupported` with a per-token loss."""
    if job.aggregation.mode is Mode.TOKEN_MEAN:
        raise Unsupported("Cannot average in collective when calculating per-token loss!")
    return True


_FILE = RecordFile("adapters.megatron_lm", settings, globals(), experts=SHARED, router=TYPED)

MEGATRON_LM = _FILE.record(NOTHING_LEARNED, ZEROED, CPU_AS_CUDA, PIPELINE_STAGES, ONE_BY_ONE)

PER_SEQUENCE = _FILE.variant("per_sequence").modes
"""A mode of pull request 6113, which is not merged."""
