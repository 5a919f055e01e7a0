"""What became of the causes of one report in another.

A cause is gone if each of its findings was looked at again and is right, and new if some of its
findings was looked at before. Of anything else it is only said what its findings are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.diff import key
from conformance.findings.cause import Severity
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.diff import Key
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report


class Fate(StrEnum):
    """What became of a cause, in the order of what asks for attention."""

    NEW = "new"
    CHANGED = "changed"
    """The same mistake under another condition."""

    UNSEEN_BEFORE = "not looked at before"
    UNSEEN = "not known to be gone"
    GONE = "gone"
    SAME = "the same"


RIGHT = "right"
OTHERWISE_WRONG = "wrong in another way"
NOT_RUN = "not run"

LOOKED_AT = (RIGHT, OTHERWISE_WRONG)
"""What a finding of the other report is if it says something of a cause."""


class CauseChange(NamedTuple):
    """A cause of either report, or of both, and what became of it."""

    fate: Fate
    old: Cause | None
    new: Cause | None
    became: str = ""
    """What its findings are in the report without it, where that leaves open what became of it."""

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


def missing_cause(cause: Cause, old: Report, new: Report) -> CauseChange:
    """What became of a cause of the old report that the new one does not have."""
    return _missing(cause, _Side(old), _Side(new))


def _missing(cause: Cause, old: _Side, new: _Side) -> CauseChange:
    found = _verdicts_on(cause, old, new)
    if set(found) <= {RIGHT}:
        return CauseChange(Fate.GONE, cause, None)
    return CauseChange(Fate.UNSEEN, cause, None, f"now {_counted(found)}")


def _changes(old: Report, new: Report) -> Iterator[CauseChange]:
    before, after = _wrong(old), _wrong(new)
    old_side, new_side = _Side(old), _Side(new)
    for cause in [*after]:
        same = next((one for one in before if one.key == cause.key), None)
        if same is not None:
            before.remove(same)
            after.remove(cause)
            yield CauseChange(Fate.SAME, same, cause)
    for cause in after:
        alike = next((one for one in before if one.mistake == cause.mistake), None)
        if alike is None:
            yield _appeared(cause, old_side, new_side)
        else:
            before.remove(alike)
            yield CauseChange(Fate.CHANGED, alike, cause)
    for cause in before:
        yield _missing(cause, old_side, new_side)


def _appeared(cause: Cause, old: _Side, new: _Side) -> CauseChange:
    found = _verdicts_on(cause, new, old)
    if not found.keys().isdisjoint(LOOKED_AT):
        return CauseChange(Fate.NEW, None, cause)
    return CauseChange(Fate.UNSEEN_BEFORE, None, cause, f"before {_counted(found)}")


def _wrong(report: Report) -> list[Cause]:
    return [cause for cause in report.causes if cause.severity is not Severity.ADVICE]


@dataclass(frozen=True)
class _Side:
    """A report, by what its findings are of."""

    report: Report

    @cached_property
    def findings(self) -> dict[Key, Finding]:
        return {key(self.report.request, finding): finding for finding in self.report.findings}

    @cached_property
    def mistakes(self) -> dict[str, set[str]]:
        """The mistakes of each finding that is wrong, by its id."""
        mistakes: dict[str, set[str]] = defaultdict(set)
        for cause in self.report.causes:
            for name in cause.findings:
                mistakes[name].add(cause.mistake)
        return mistakes


def _verdicts_on(cause: Cause, here: _Side, there: _Side) -> Counter[str]:
    """Counts what the findings of a cause of one report are in the other."""
    explained = {*cause.findings}
    return Counter(
        _verdict_on(cause, finding, there.findings.get(of), here, there)
        for of, finding in here.findings.items()
        if finding.id in explained
    )


def _verdict_on(
    cause: Cause, finding: Finding, other: Finding | None, here: _Side, there: _Side
) -> str:
    """Returns what another report's finding of the same says of a cause.

    It is right as well if it is wrong by mistakes alone that were there beside the cause, or if the
    cause keeps steps from being trained, and this one is.
    """
    if other is None:
        return NOT_RUN
    if other.verdict in (Verdict.CONFORMS, Verdict.ADVICE) or other.is_rightly_refused:
        return RIGHT
    if other.verdict is not Verdict.MISMATCH:
        return str(other.verdict).replace("_", " ")
    others, left = here.mistakes[finding.id] - {cause.mistake}, there.mistakes[other.id]
    is_trained_again = cause.severity is Severity.NOT_TRAINED
    return RIGHT if is_trained_again or (left and left <= others) else OTHERWISE_WRONG


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{count} {words}" for words, count in found.most_common())
