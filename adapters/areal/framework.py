"""The records of AReaL: options as users type them below `actor`, and AReaL's documents."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import CONSTANTS
from adapters.contract.tables import RecordFile
from adapters.engines.shells import CPU_AS_CUDA, NOTHING_LEARNED, PIPELINE_STAGES, ZEROED
from adapters.toolkit import settings
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Framework, Job, Settings
    from reference.step import Step


def budget(job: Job) -> int:
    """A token budget for micro-batches; in `prompt_mean`, it holds all samples of a prompt."""
    if job.aggregation.mode is not Mode.PROMPT_MEAN:
        return settings.rank_budget(job)
    longest = max(_longest_prompt(step) for step in job.steps)
    return max(settings.rank_budget(job), longest * 5 // 4)


def _longest_prompt(step: Step) -> int:
    """The largest number of tokens of all samples of a prompt."""
    prompt = np.unique(step.groups, return_inverse=True)[1]
    return int(np.bincount(prompt, step.prompt_lengths + step.response_lengths).max())


def group_size(job: Job) -> int:
    """The largest number of samples of a prompt."""
    return max(int(np.unique(step.groups, return_counts=True)[1].max()) for step in job.steps)


def reward_clip(job: Job) -> float | str:
    """A bound above all rewards; empty if the default of 20 is high enough."""
    given = [step.rewards for step in job.steps if step.rewards is not None]
    largest = max((float(np.abs(rewards).max()) for rewards in given), default=0.0)
    return 2 * largest if largest > 20 else ""


def sharded(job: Job) -> str:
    """The parallel sizes of FSDP2, in AReaL's notation."""
    return f"fsdp:d{job.layout.dp}c{job.layout.cp}"


def grid(job: Job) -> str:
    """The parallel sizes of Megatron, in AReaL's notation."""
    layout = job.layout
    return f"megatron:d{layout.dp}p{layout.pp}t{layout.tp}c{layout.cp}"


_FILE = RecordFile(
    "adapters.areal",
    settings,
    globals(),
    log_kept_low=math.log(CONSTANTS.kept_low),
    log_kept_high=math.log(CONSTANTS.kept_high),
)

AREAL = _FILE.record(NOTHING_LEARNED, ZEROED)
FSDP2 = _FILE.variant("fsdp2", base=AREAL)
# AReaL's engine always sets up checkpoints, which require the distributed optimizer.
MEGATRON = _FILE.variant("megatron", PIPELINE_STAGES, CPU_AS_CUDA, base=AREAL)


def version_record(record: Framework, offers: Callable[[Settings], bool]) -> Framework:
    """Returns the record of a version: the options that it offers, and its modes' conventions."""
    version = record.narrowed(offers)
    if not offers({"loss_aggregation": "seq_mean"}):
        return version
    of_modes = "fixed_groups" if offers({"group_size": 1}) else "any_groups"
    return _FILE.variant(of_modes, base=version)
