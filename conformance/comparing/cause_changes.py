"""What became of the causes of one report in another."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.cause import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.cause import Cause
    from conformance.findings.report import Report


class Fate(StrEnum):
    """What became of a cause, in the order of what asks for attention."""

    NEW = "new"
    CHANGED = "changed"
    """The same mistake under another condition."""

    GONE = "gone"
    SAME = "the same"


class CauseChange(NamedTuple):
    """A cause of either report, or of both, and what became of it."""

    fate: Fate
    old: Cause | None
    new: Cause | None

    @property
    def statement(self) -> str:
        """What the cause is, and what it was."""
        one = self.new or self.old
        assert one is not None
        if self.old is None or self.new is None or self.fate is Fate.SAME:
            return one.statement
        return f"{self.new.statement} (it was: {self.old.statement})"

    @property
    def findings(self) -> str:
        """How many findings it explains, in words."""
        counts = [str(len(one.findings)) for one in (self.old, self.new) if one is not None]
        return " -> ".join(dict.fromkeys(counts))


def cause_changes(old: Report, new: Report) -> list[CauseChange]:
    """The causes of what is wrong in either report; of the same kind in the order of the reports.

    A cause is the same one if mistake and condition are, whatever findings it explains.
    """
    return sorted(_changes(old, new), key=lambda change: [*Fate].index(change.fate))


def _changes(old: Report, new: Report) -> Iterator[CauseChange]:
    before, after = _wrong(old), _wrong(new)
    for cause in [*after]:
        same = next((one for one in before if one.key == cause.key), None)
        if same is not None:
            before.remove(same)
            after.remove(cause)
            yield CauseChange(Fate.SAME, same, cause)
    for cause in after:
        alike = next((one for one in before if one.name == cause.name), None)
        if alike is None:
            yield CauseChange(Fate.NEW, None, cause)
        else:
            before.remove(alike)
            yield CauseChange(Fate.CHANGED, alike, cause)
    for cause in before:
        yield CauseChange(Fate.GONE, cause, None)


def _wrong(report: Report) -> list[Cause]:
    return [cause for cause in report.causes if cause.severity is not Severity.ADVICE]
