"""Configurations for startup validation, which differ in a few points from those of the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Setting(StrEnum):
    """A setting in which the configuration of a run may differ from what its job implies."""

    MODE = "mode"  # which may also be left to the default
    DIVISOR = "divisor"  # of `constant`, as typed
    PER_TOKEN = "per_token"  # the older flag for `token_mean`
    ENTROPY = "entropy"  # an entropy bonus besides the policy loss
    KL = "kl"  # a divergence from a reference policy besides the policy loss
    BATCH_SIZE = "batch_size"  # the number of samples of an optimizer step
    CORRECTION = "correction"  # a custom function for truncated importance sampling
    REDUCER = "reducer"  # a custom reducer of the policy loss
    CONFIG_FILE = "config_file"  # a configuration file that is read after the command line


class FaultInjection(StrEnum):
    """A fault in the samples or train data that reach the loss."""

    GROUPS_MISSING = "groups_missing"  # samples have no prompt group
    GROUP_INCOMPLETE = "group_incomplete"  # the first prompt group lacks a sample
    DENOMINATORS_DROPPED = "denominators_dropped"  # a custom conversion leaves out `prompt_mean`'s
    BOUNDARY_GAP = "boundary_gap"  # a sample between two prompt groups belongs to none
    BOUNDARY_OVERLAP = "boundary_overlap"  # a sample belongs to two adjacent prompt groups
    BOUNDARY_SHORT = "boundary_short"  # the last prompt group ends before the last sample


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
REDUCER_DIVISOR = 64.0  # the divisor of the custom reducer
