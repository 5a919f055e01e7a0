"""Combines the log entries of micro-batches of `native`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import LogEntry


def aggregate(entries: Sequence[LogEntry]) -> dict[str, float]:
    """Sums of values, divided by sums of their divisors.

    Raises:
        ValueError: the entries differ in their keys or the order of keys.
    """
    first = entries[0]
    for entry in entries:
        if entry.keys != first.keys:
            raise ValueError(
                f"keys {entry.keys} after {first.keys}; log the same in the same order"
            )
    values = np.sum([entry.values for entry in entries], axis=0)
    divisors = np.sum([_divisors(entry) for entry in entries], axis=0)
    return dict(zip(first.keys, (values / divisors).tolist(), strict=True))


def _divisors(entry: LogEntry) -> tuple[float, ...]:
    return entry.normalizers or (entry.count,) * len(entry.keys)
