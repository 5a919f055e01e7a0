"""The options of `native` and their validation at startup.

Values come from the command line and a configuration file that is read after it; they are
validated when both are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Refused, Unsupported
from adapters.contract.configuration import FaultInjection, Setting
from reference.aggregation import Aggregation, InvalidAggregationError, Mode

if TYPE_CHECKING:
    from adapters.contract import Job

DEFAULTS: dict[Setting, Any] = {
    Setting.MODE: Mode.SAMPLE_MEAN.value,
    Setting.DIVISOR: None,
    Setting.PER_TOKEN: False,
    Setting.BATCH_SIZE: None,
}


CONFIGURATIONS = (
    "divisor_missing",
    "divisor_zero",
    "divisor_negative",
    "divisor_nan",
    "divisor_infinite",
    "divisor_bool",
    "divisor_text",
    "divisor_of_another_mode",
    "per_token_with_another_mode",
    "batch_of_partial_groups",
)
"""Rules of configurations, on the command line or in a file."""

NAMES: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: (),
    Setting.DIVISOR: ("divisor",),
    Setting.PER_TOKEN: ("per-token",),
    Setting.BATCH_SIZE: ("batch",),
    Setting.REDUCER: (),
    Setting.CONFIG_FILE: (),
    FaultInjection.GROUPS_MISSING: ("group",),
    FaultInjection.DENOMINATORS_DROPPED: ("denominators",),
}
"""What configurations may set, and how errors name it."""

RULES = dict.fromkeys(
    (
        *CONFIGURATIONS,
        *(f"{rule}_in_file" for rule in CONFIGURATIONS),
        *FaultInjection,
        "legacy_flag",
        "default_mode",
        "custom_reducer",
        "mode_in_file",
        "log_well_formed",
        "log_well_formed_normalizers",
        "log_different_keys",
        "log_key_order",
    ),
    "its own validation",
)
"""The rules of configurations and logs that `native` states, by name."""


@dataclass(frozen=True)
class Options:
    """The values of all options, with defaults for those that are not set."""

    mode: str
    divisor: Any
    per_token: bool
    batch_size: int | None


def merged(job: Job) -> Options:
    """The options of a job; a configuration file overrides the command line."""
    command_line, file = said(job)
    values = {**DEFAULTS, **command_line, **file}
    return Options(**{str(setting): values[setting] for setting in DEFAULTS})


def aggregation(options: Options, job: Job) -> Aggregation:
    """The aggregation that the options ask for; the job's if they are invalid and not refused."""
    mode = Mode.TOKEN_MEAN if options.per_token else Mode(options.mode)
    try:
        return Aggregation(mode, float(options.divisor) if mode is Mode.CONSTANT else None)
    except (InvalidAggregationError, TypeError, ValueError):
        return job.aggregation


def said(job: Job) -> tuple[dict[Setting, Any], dict[Setting, Any]]:
    """The settings on the command line and those in the file."""
    configuration = job.configuration
    values: dict[Setting, Any] = {}
    if configuration.says_mode:
        values[Setting.MODE] = job.aggregation.mode.value
    if configuration.divisor or (configuration.divisor is None and job.aggregation.divisor):
        values[Setting.DIVISOR] = configuration.divisor or job.aggregation.divisor
    if configuration.per_token:
        values[Setting.PER_TOKEN] = True
    if configuration.batch_size is not None:
        values[Setting.BATCH_SIZE] = configuration.batch_size
    in_file = {key: value for key, value in values.items() if key in configuration.in_file}
    return {key: value for key, value in values.items() if key not in in_file}, in_file


def validate(options: Options, job: Job) -> None:
    """Refuse options that would give a wrong denominator.

    Raises:
        Refused: the message names the options.
    """
    _validate_divisor(options)
    if options.per_token and options.mode not in (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN):
        raise Refused(f"the per-token flag renormalises aggregation {options.mode}; drop either")
    if options.mode == Mode.PROMPT_MEAN and options.batch_size is not None:
        _validate_batch(options.batch_size, job)


def validate_data(options: Options, job: Job) -> None:
    """Refuse data that `prompt_mean` cannot use.

    Raises:
        Refused: the message names the missing data.
        Unsupported: this framework has no such data.
    """
    missing = {
        FaultInjection.GROUPS_MISSING: "the prompt group of every sample",
        FaultInjection.DENOMINATORS_DROPPED: "the denominators of prompt groups",
    }
    fault_injection = job.configuration.fault_injection
    if job.configuration.corrects:
        raise Unsupported("no function of a user's that takes tokens out of the mask")
    if fault_injection is None:
        return
    if fault_injection not in missing:
        raise Unsupported(f"{fault_injection}: groups of any size, and no boundaries")
    if options.mode == Mode.PROMPT_MEAN:
        raise Refused(f"{options.mode} needs {missing[fault_injection]}")


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
