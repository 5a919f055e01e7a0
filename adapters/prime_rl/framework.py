"""The record of prime-rl: options of its trainer and its orchestrator, and prime-rl's documents."""

from __future__ import annotations

from adapters.contract import Job, Unsupported
from adapters.contract.tables import RecordFile
from adapters.engines.shells import ZEROED
from adapters.toolkit import settings


def all_tokens(job: Job) -> int:
    """A token budget with which a rank has one micro-batch."""
    if job.layout.micro_batches != 1:
        raise Unsupported("micro-batches are cut by tokens, not by their number")
    lengths = [step.prompt_lengths + step.response_lengths for step in job.steps]
    return 1 + sum(int(of_step.sum()) for of_step in lengths)


PRIME_RL = RecordFile("adapters.prime_rl", settings, globals()).record(ZEROED)
