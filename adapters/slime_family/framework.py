"""The base records of slime and miles: options as users type them, and departures.

The two frameworks are of one lineage and share most of their command line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Framework, Job, Objective, Option, Settings, Unsupported
from adapters.contract.framework import Substitute
from adapters.contract.tables import RecordFile
from adapters.engines.experts import SHARED
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
from adapters.slime_family import user_code
from adapters.toolkit import settings
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable


TABLES = "adapters.slime_family"
"""The package with the tables of slime and miles."""

MODE = "--loss-aggregation"
DIVISOR = "--loss-aggregation-divisor"
OLDER_DIVISOR = "--pg-loss-divisor"
CORRECTION = "--custom-tis-function-path"
CONFIG_FILE = "--custom-config-path"

OPTIONAL = ("--num-critic-only-steps", "--observe-training-entropy")
"""Options that some versions lack because these versions always behave as if the options were set.
"""

IN_FILE_TOO_LATE = ("--ref-load",)
"""Options that are validated before a configuration file is read."""

TOGETHER = "rollout functions return list[list[Sample]]"
"""The reason why the samples of a prompt must be adjacent."""


def rollout_batch_size(job: Job) -> int:
    """The number of prompts of all steps."""
    return sum(len(np.unique(step.groups)) for step in job.steps)


def micro_batch_size(job: Job) -> int:
    """The micro-batch size that gives every rank the layout's number of micro-batches."""
    assert isinstance(job.layout.micro_batches, int)
    wanted = job.layout.dp * job.layout.micro_batches
    for size in range(1, max(step.size for step in job.steps) + 1):
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no micro-batch size that cuts the samples of every step into {wanted}")


def _mixture_size(number: Callable[[Job], int]) -> Callable[[Job], int | str]:
    """A size of a mixture of experts if routing is replayed; otherwise empty."""
    return lambda job: number(job) if Option.ROUTING_REPLAY in job.layout.options else ""


def _layers(job: Job) -> int:
    """The number of layers of a model that has one layer per chunk."""
    return job.layout.pp * (2 if Option.INTERLEAVED in job.layout.options else 1)


def divisor(job: Job) -> float | str:
    """The divisor of the mode; empty if there is none."""
    return job.aggregation.divisor or ""


def older_divisor(job: Job) -> str | None:
    """The divisor of the configuration, as typed.

    Raises `Unsupported` if it would choose another mode than the job's.
    """
    divisor, mode = job.configuration.divisor, job.aggregation.mode
    if bool(divisor) != (mode is Mode.CONSTANT) and mode is not Mode.TOKEN_MEAN:
        raise Unsupported(f"no option {MODE}: a divisor alone makes a mode constant")
    return divisor


EXPERTS = 4096
"""The number of experts with routing replay: at least the number of tokens of a batch."""

_FILE = RecordFile(
    TABLES,
    settings,
    globals(),
    experts=SHARED,
    replayed_experts=_mixture_size(lambda _: EXPERTS),
    replayed_choices=_mixture_size(lambda _: 1),
    replaying_layers=_mixture_size(_layers),
    reference=Substitute("."),
    reject=user_code.path(user_code.reject),
    correct=user_code.path(user_code.correct),
    reducer=user_code.path(user_code.reducer),
    conversion=user_code.path(user_code.conversion),
)

FAMILY = _FILE.record(CPU_AS_CUDA)
ON_MEGATRON = _FILE.variant("megatron", PIPELINE_STAGES, ONE_BY_ONE, base=FAMILY)


def icepop_record(record: Framework, home: str) -> Framework:
    """A record extended by IcePop, which a module's correction implements."""
    chosen = {**record.objectives[Objective.TIS_BOUNDED], CORRECTION: f"{home}.icepop_function"}
    return replace(record, objectives={**record.objectives, Objective.ICEPOP: chosen})


def version_record(record: Framework, has: Callable[[Settings], bool]) -> Framework:
    """The record of a version; ``has`` says whether the version has options and values.

    Versions without an option for the four modes have a flag for `token_mean`.
    """
    if not has({MODE: ""}):
        record = _FILE.variant("older", base=replace(record, modes={}))
    return record.narrowed(has)
