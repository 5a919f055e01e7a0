"""Logs that combine entries that do not match."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adapters.contract import LogEntry
from adapters.native.adapter import aggregate
from conformance.findings.verdict import Check
from conformance.plan.checks import CheckSpec
from tests.mutants.mutant import Mutant


class LogMutant(Mutant, spec=CheckSpec(check=Check.LOGGING)):
    """A mutant whose training is right; log entries of micro-batches show its mistake."""

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        raise NotImplementedError


class KeysAsserted(LogMutant, diagnosis="refused_by_an_assert"):
    """An assert compares keys, which ``python -O`` removes."""

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        for entry in entries:
            assert entry.keys == entries[0].keys
        return by_position(entries)


class KeysIgnored(LogMutant, diagnosis="accepted"):
    """Values are summed by position, under the keys of the first entry."""

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        return by_position(entries)


class OrderIgnored(LogMutant, diagnosis="accepted"):
    """Keys are compared as sets."""

    @staticmethod
    def aggregate(entries: Sequence[LogEntry]) -> Mapping[str, float]:
        if any({*entry.keys} != {*entries[0].keys} for entry in entries):
            raise ValueError("entries of different keys")
        return by_position(entries)


def by_position(entries: Sequence[LogEntry]) -> Mapping[str, float]:
    """Sums by position, under the keys of the first entry."""
    return aggregate([replace(entry, keys=entries[0].keys) for entry in entries])
