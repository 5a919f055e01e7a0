"""Makes one log of what the micro-batches of `native` hand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import LogEntry


def aggregate(entries: Sequence[LogEntry]) -> dict[str, float]:
    """Sums of values over sums of what divides them.

    Raises:
        ValueError: entries of different keys or forms, values or normalizers that are not one for
            each key, or a divisor that is not above 0.
    """
    first = entries[0]
    for entry in entries:
        _require_form(entry, first)
    values = np.sum([entry.values for entry in entries], axis=0)
    divisors = np.sum([_divisors(entry) for entry in entries], axis=0)
    for key, divisor in zip(first.keys, divisors, strict=True):
        if divisor <= 0:
            raise ValueError(f"{key} is to be divided by {divisor:g}; count something in it")
    return dict(zip(first.keys, (values / divisors).tolist(), strict=True))


def _require_form(entry: LogEntry, first: LogEntry) -> None:
    if entry.keys != first.keys:
        raise ValueError(f"keys {entry.keys} after {first.keys}; log the same in the same order")
    if (entry.normalizers is None) != (first.normalizers is None):
        raise ValueError("entries with normalizers and without; give them to all or to none")
    if not len(entry.keys) == len(entry.values) == len(_divisors(entry)):
        raise ValueError(f"{entry.keys} has {entry.values} over {entry.normalizers}; give all")


def _divisors(entry: LogEntry) -> tuple[float, ...]:
    return entry.normalizers or (entry.count,) * len(entry.keys)
