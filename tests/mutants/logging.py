"""Logs that are made of what does not belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Layout
from adapters.native_logs import aggregate
from conformance.report import Check
from conformance.subjects import Subject
from tests.mutants.mutant import Mutant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract import LogEntry


class LogMutant(Mutant):
    """It trains right, and is seen by entries of micro-batches."""

    subject = Subject(check=Check.LOGGING)
    layouts = (Layout(),)
    cases = ()

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        raise NotImplementedError


class ShapesAsserted(LogMutant):
    """Lengths and keys are checked by asserts, which ``python -O`` leaves out."""

    diagnosis = "refused_by_an_assert"

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        for entry in entries:
            assert entry.keys == entries[0].keys
            assert len(entry.keys) == len(entry.values)
            assert len(entry.normalizers or entry.keys) == len(entry.keys)
            assert all(normalizer > 0 for normalizer in entry.normalizers or ())
            assert (entry.normalizers is None) == (entries[0].normalizers is None)
        return zipped(entries)


class ZippedShort(LogMutant):
    """`zip` over keys and values ends with the shorter of them."""

    diagnosis = "accepted"

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        return zipped(entries)


class NormalizersClamped(LogMutant):
    """What would divide by 0 divides by 1 instead."""

    diagnosis = "accepted"

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        try:
            return aggregate(entries)
        except ValueError as error:
            if "divided by" not in str(error):
                raise
            return zipped(entries)


def zipped(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """By position, of the first entry's keys, over whatever there is to divide by."""
    total: dict[str, float] = {}
    for i, key in enumerate(entries[0].keys):
        values = [entry.values[i] for entry in entries if i < len(entry.values)]
        normalizers = [
            entry.normalizers[i]
            for entry in entries
            if entry.normalizers and i < len(entry.normalizers)
        ]
        if values:
            total[key] = sum(values) / max(sum(normalizers), 1.0)
    return total
