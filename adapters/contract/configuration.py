"""Configurations for startup validation, which differ in a few points from those of the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Setting(StrEnum):
    """A setting in which the configuration of a run may differ from what its job implies."""

    MODE = "mode"
    """The mode, which may also be left to the default."""

    DIVISOR = "divisor"
    """The divisor of `constant`, as typed."""

    PER_TOKEN = "per_token"
    """The older flag for `token_mean`."""

    ENTROPY = "entropy"
    """An entropy bonus besides the policy loss."""

    KL = "kl"
    """A divergence from a reference policy besides the policy loss."""

    BATCH_SIZE = "batch_size"
    """The number of samples of an optimizer step."""

    CORRECTION = "correction"
    """A custom function for truncated importance sampling."""

    REDUCER = "reducer"
    """A custom reducer of the policy loss."""

    CONFIG_FILE = "config_file"
    """A configuration file that is read after the command line."""


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

    @property
    def settings(self) -> frozenset[Setting | FaultInjection]:
        """The settings in which it differs from what the job implies."""
        chosen: dict[Setting | FaultInjection, bool] = {
            Setting.MODE: not self.says_mode,
            Setting.DIVISOR: self.divisor is not None,
            Setting.PER_TOKEN: self.per_token,
            Setting.ENTROPY: self.entropy,
            Setting.KL: self.kl,
            Setting.BATCH_SIZE: self.batch_size is not None,
            Setting.CORRECTION: self.corrects,
            Setting.REDUCER: self.reduces,
            Setting.CONFIG_FILE: bool(self.in_file),
        }
        faults = () if self.fault_injection is None else (self.fault_injection,)
        return frozenset([*(setting for setting, is_set in chosen.items() if is_set), *faults])


DEFAULT_CONFIGURATION = Configuration()
# The divisor of the custom reducer.
REDUCER_DIVISOR = 64.0
