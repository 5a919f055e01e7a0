"""What a user may type, right or wrong: the configurations that startup validation has to judge.

A job has an ordinary configuration, the one that its mode and layout follow from. What is written
here deviates from it in one point or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Setting(StrEnum):
    """What can be said on the command line or in a configuration file that is read after it."""

    MODE = "mode"
    DIVISOR = "divisor"
    PER_TOKEN = "per_token"
    ENTROPY = "entropy"
    KL = "kl"
    BATCH_SIZE = "batch_size"


class FaultInjection(StrEnum):
    """What reaches the loss otherwise than the framework's own rollout side would send it."""

    GROUPS_MISSING = "groups_missing"
    """Samples do not say which prompt group they belong to."""

    GROUP_INCOMPLETE = "group_incomplete"
    """The first prompt group has a sample less than it should."""

    DENOMINATORS_DROPPED = "denominators_dropped"
    """A custom conversion of samples leaves out what `prompt_mean` divides by."""

    BOUNDARY_GAP = "boundary_gap"
    """Between two prompt groups there is a sample that belongs to none."""

    BOUNDARY_OVERLAP = "boundary_overlap"
    """A sample belongs to two adjacent prompt groups."""

    BOUNDARY_SHORT = "boundary_short"
    """The last prompt group ends before the last sample."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """How a run is configured where that is not what its job's mode and layout imply.

    ``says_mode`` is False where the mode is left to the default, and ``per_token`` is the flag that
    stood for `token_mean` before there were modes. ``divisor`` is given as typed; the job's own if
    None, none at all if empty. ``entropy`` and ``kl`` switch terms on beside the policy loss;
    ``corrects`` is a custom function for truncated importance sampling, ``reduces`` a custom
    reducer of the policy loss, which sums and divides by `REDUCER_DIVISOR` whatever the mode.
    ``batch_size`` is the number of samples of an optimizer step, the job's if None. ``in_file``
    are settings that are not on the command line but in a configuration file.
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
"""What our custom reducer divides by."""
