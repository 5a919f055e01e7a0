"""The options of `native` and their validation at startup.

Options may be set on the command line or in a configuration file that is read after it, and are
validated after both are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.contract import Job, Refused, Unsupported
from adapters.contract.job import FaultInjection
from reference.aggregation import Aggregation, Mode

MISSING: dict[FaultInjection, str] = {
    FaultInjection.GROUPS_MISSING: "the prompt group of every sample",
    FaultInjection.DENOMINATORS_DROPPED: "the denominators of prompt groups",
}
"""The data that `prompt_mean` lacks under each fault."""


@dataclass(frozen=True)
class Options:
    """The values of all options, with defaults for those that are not set."""

    mode: str
    divisor: Any
    per_token: bool
    batch_size: int | None

    @property
    def aggregation(self) -> Aggregation:
        """The mode and divisor; the options must be validated."""
        mode = Mode.TOKEN_MEAN if self.per_token else Mode(self.mode)
        return Aggregation(mode, None if self.divisor is None else float(self.divisor))


def merged(job: Job) -> Options:
    """A job's options from the command line and the file, with defaults for unset options."""
    configuration, aggregation = job.configuration, job.aggregation
    typed = aggregation.divisor if configuration.divisor is None else configuration.divisor
    return Options(
        mode=(aggregation.mode if configuration.says_mode else Mode.SAMPLE_MEAN).value,
        divisor=typed or None,
        per_token=configuration.per_token,
        batch_size=configuration.batch_size,
    )


def validate(options: Options, job: Job) -> None:
    """Raise `Refused`, naming the options, if they would give a wrong denominator."""
    _validate_divisor(options)
    if options.per_token and options.mode not in (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN):
        raise Refused(f"the per-token flag renormalises aggregation {options.mode}; drop either")
    if options.mode == Mode.PROMPT_MEAN and options.batch_size is not None:
        _validate_batch(options.batch_size, job)


def validate_data(options: Options, job: Job) -> None:
    """Raise `Refused` for data that `prompt_mean` cannot use, `Unsupported` for unknown data."""
    fault_injection = job.configuration.fault_injection
    if job.configuration.corrects:
        raise Unsupported("no function of a user's that takes tokens out of the mask")
    if fault_injection not in (None, *MISSING):
        raise Unsupported(f"{fault_injection}: groups of any size, and no boundaries")
    if fault_injection is not None and options.mode == Mode.PROMPT_MEAN:
        raise Refused(f"{options.mode} needs {MISSING[fault_injection]}")


def _validate_divisor(options: Options) -> None:
    if options.mode != Mode.CONSTANT:
        if options.divisor is not None:
            raise Refused(f"divisor {options.divisor!r} with {options.mode}, which has none")
        return
    try:
        divisor = float(options.divisor)
    except (TypeError, ValueError):
        divisor = math.nan
    if not (math.isfinite(divisor) and divisor > 0):
        raise Refused(f"constant needs a divisor above 0 and got {options.divisor!r}")


def _validate_batch(batch_size: int, job: Job) -> None:
    for step in job.steps:
        inside = step.groups[batch_size - 1 : -1 : batch_size]
        if np.any(inside == step.groups[batch_size::batch_size][: len(inside)]):
            raise Refused(f"a batch of {batch_size} samples ends inside a prompt group")
