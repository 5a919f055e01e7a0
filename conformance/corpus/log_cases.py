"""Logs of micro-batches, well formed and malformed; frameworks must refuse the latter.

miles' pull request 1498 states the rule: different keys, or the same keys in another order, put a
wrong number under a metric's name. This happens if a user's own function adds metrics to the log of
some micro-batches. Nothing else can be malformed: an entry's keys and values come from one
dictionary, and its form from one option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from adapters.contract import LogEntry
from reference.aggregation import Mode


@dataclass(frozen=True, kw_only=True)
class LogCase:
    """Log entries of one rank's micro-batches, malformed unless ``is_well_formed``."""

    name: str
    says: str
    entries: tuple[LogEntry, ...]
    mode: Mode = Mode.TOKEN_MEAN
    is_well_formed: bool = False
    origin: str = "miles' pull request 1498"

    @property
    def rule(self) -> str:
        """The name of the rule that the case tests."""
        return f"log_{self.name}"


def _entry(keys: str = "loss kl", count: float = 1.0) -> LogEntry:
    return LogEntry(keys=tuple(keys.split()), values=(2.0, 3.0), count=count)


def _normalized(*normalizers: float) -> LogEntry:
    return replace(_entry(), normalizers=normalizers)


CUSTOM = "as a custom loss or importance-sampling function may add metrics"


LOG_CASES = (
    LogCase(
        name="well_formed",
        says="entries of one form",
        entries=(_entry(count=4.0), _entry(count=2.0)),
        mode=Mode.SAMPLE_MEAN,
        is_well_formed=True,
    ),
    LogCase(
        name="well_formed_normalizers",
        says="entries with a normalizer for each key",
        entries=(_normalized(4.0, 8.0), _normalized(2.0, 2.0)),
        is_well_formed=True,
    ),
    LogCase(
        name="different_keys",
        says=f"entries of different keys, {CUSTOM}",
        entries=(_entry(), _entry("loss entropy")),
        mode=Mode.SAMPLE_MEAN,
    ),
    LogCase(
        name="key_order",
        says=f"the same keys in another order, {CUSTOM}",
        entries=(_entry(), _entry("kl loss")),
        mode=Mode.SAMPLE_MEAN,
    ),
)

LOG_ENTRIES = {case.name: case.entries for case in LOG_CASES}
