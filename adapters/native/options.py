"""What a user can tell `native`, and what it refuses at startup.

Values come from the command line and from a configuration file that is read after it; they are
validated once both are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Refused, Unsupported
from adapters.contract.configuration import FaultInjection, Setting
from reference.aggregation import Mode

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
"""Rules of configurations that may be typed or stand in a file."""

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
"""What `native` promises of configurations and logs, by the rule's name."""


@dataclass(frozen=True)
class Options:
    """Everything said, from wherever, with defaults for the rest."""

    mode: str
    divisor: Any
    per_token: bool
    batch_size: int | None


def merged(job: Job) -> Options:
    """The options of a job: a configuration file has the last word."""
    command_line, file = said(job)
    values = {**DEFAULTS, **command_line, **file}
    return Options(**{str(setting): values[setting] for setting in DEFAULTS})


def said(job: Job) -> tuple[dict[Setting, Any], dict[Setting, Any]]:
    """What is said on the command line, and in the file."""
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
    """Stop where a denominator would be wrong.

    Raises:
        Refused: naming the options that do not go together.
    """
    _validate_divisor(options)
    if options.per_token and options.mode not in (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN):
        raise Refused(f"the per-token flag renormalises aggregation {options.mode}; drop either")
    if options.mode == Mode.PROMPT_MEAN and options.batch_size is not None:
        _validate_batch(options.batch_size, job)


def validate_data(options: Options, job: Job) -> None:
    """Stop where what reaches the loss is not what `prompt_mean` needs.

    Raises:
        Refused: naming what is missing.
        Unsupported: nothing of the kind reaches this loss.
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
