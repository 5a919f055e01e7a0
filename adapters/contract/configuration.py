"""Configurations for startup validation, which differ in a few points from those of the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Setting(StrEnum):
    """A setting on the command line or in a configuration file that is read after it."""

    MODE = "mode"
    DIVISOR = "divisor"
    PER_TOKEN = "per_token"
    ENTROPY = "entropy"
    KL = "kl"
    BATCH_SIZE = "batch_size"


class FaultInjection(StrEnum):
    """A fault in the samples or train data that reach the loss."""

    GROUPS_MISSING = "groups_missing"
    """Samples have no prompt group."""

    GROUP_INCOMPLETE = "group_incomplete"
    """The first prompt group lacks a sample."""

    DENOMINATORS_DROPPED = "denominators_dropped"
    """A custom conversion of samples leaves out the denominators of `prompt_mean`."""

    BOUNDARY_GAP = "boundary_gap"
    """A sample between two prompt groups belongs to none."""

    BOUNDARY_OVERLAP = "boundary_overlap"
    """A sample belongs to two adjacent prompt groups."""

    BOUNDARY_SHORT = "boundary_short"
    """The last prompt group ends before the last sample."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration of a run, where it differs from what the job's mode and layout imply.

    ``says_mode`` is False if the mode is left to the default; ``per_token`` is the older flag for
    `token_mean`. ``divisor`` is the text typed: the job's divisor if None, no divisor if empty.
    ``entropy`` and ``kl`` switch on auxiliary losses; ``corrects`` sets a custom function for
    truncated importance sampling, ``reduces`` a custom reducer of the policy loss, which divides
    sums by `REDUCER_DIVISOR` in every mode. ``batch_size`` is the number of samples of an optimizer
    step, the job's if None. ``in_file`` are the settings in a configuration file instead of the
    command line.
    """

    says_mode: bool = True
    per_token: bool = False
    divisor: str | None = None
    entropy: bool = False
    kl: bool = False
    corrects: bool = False
    reduces: bool = False
    batch_size: int | None = None
    in_file: frozenset[Setting] = frozenset()
    fault_injection: FaultInjection | None = None


DEFAULT_CONFIGURATION = Configuration()

REDUCER_DIVISOR = 64.0
"""The divisor of the custom reducer."""
