"""The records of NeMo-RL: options of its example configurations, and its documents."""

from __future__ import annotations

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, NOTHING_LEARNED, ZEROED
from adapters.toolkit import settings


def multiple(job: Job) -> int:
    """The number that must divide row lengths: each context-parallel rank has two slices."""
    return 1 if job.layout.cp == 1 else 2 * job.layout.cp


def budget(job: Job) -> int:
    """The maximum number of tokens of a micro-batch: about a third of a rank's tokens."""
    return -(-settings.rank_budget(job) // multiple(job)) * multiple(job)


def all_tokens(job: Job) -> int:
    """A token budget with which a rank has one micro-batch."""
    if job.layout.micro_batches != 1:
        raise Unsupported("packed micro-batches are cut by tokens, not by their number")
    return max(int((step.prompt_lengths + step.response_lengths).sum()) for step in job.steps)


_FILE = RecordFile("adapters.nemo_rl", settings, globals())

NEMO_RL = _FILE.record(NOTHING_LEARNED, ZEROED, CPU_AS_CUDA)
DTENSOR_V1 = _FILE.variant("dtensor_v1", base=NEMO_RL)
DTENSOR_V2 = _FILE.variant("dtensor_v2", base=NEMO_RL)
