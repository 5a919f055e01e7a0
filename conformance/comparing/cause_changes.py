"""The fates of causes between two reports.

A cause of the earlier report is gone if the later report has all of its findings and none of them
shows the cause; if some are refused, at least one must be right. A cause of the later report is new
if the earlier report judged one of its findings. A cause whose findings are all the same in both
reports is the same, whatever its name. For any other cause, only its findings' state is given.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.diff import ChangeKind, difference
from conformance.findings.cause import UNEXPLAINED, Severity
from conformance.findings.groups import shared_causes
from conformance.findings.report import Summary
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.comparing.diff import Change, Difference
    from conformance.findings.cause import Cause, SuspectedLine
    from conformance.findings.finding import Finding
    from conformance.findings.groups import SharedCause
    from conformance.findings.report import Report


class Fate(StrEnum):
    """Fates of a cause, the one that needs attention first."""

    NEW = "new"
    CHANGED = "changed"
    """The same mistake occurs under another condition."""

    UNSEEN_BEFORE = "not looked at before"
    UNSEEN = "not known to be gone"
    GONE = "gone"
    SAME = "the same"


RIGHT = "right"
WITHOUT_IT = "wrong without it"
"""Other mistakes explain the finding; if the cause was a failure, the step is trained now."""

OTHERWISE_WRONG = "wrong in another way"
"""No known mistake explains the finding, so the cause may still be a part of what is wrong."""

NOT_RUN = "not run"

LOOKED_AT = (RIGHT, WITHOUT_IT, OTHERWISE_WRONG)
"""The states of a finding that the other report judged."""


class CauseChange(NamedTuple):
    """A cause of either report, or of both, and its fate."""

    fate: Fate
    old: Cause | None
    new: Cause | None
    became: str = ""
    """The state of its findings in the report without the cause, if its fate is open."""

    @property
    def statement(self) -> str:
        """The cause in words, and the earlier condition if that changed."""
        one = self.new or self.old
        assert one is not None
        if self.old is None or self.new is None or self.fate is Fate.SAME:
            return one.statement
        return f"{self.new.statement} (it was: {self.old.statement})"

    @property
    def suspects(self) -> list[SuspectedLine]:
        """The lines to look at, from the last report with the cause."""
        one = self.new or self.old
        assert one is not None
        return one.suspects

    @property
    def findings(self) -> str:
        """The number of findings that it explains, in words."""
        counts = [str(len(one.findings)) for one in (self.old, self.new) if one is not None]
        return " -> ".join(dict.fromkeys(counts))


def cause_changes(found: Difference) -> list[CauseChange]:
    """The changes of all causes of either report, by fate and then in the order of the reports.

    Two causes are the same if they have the same mistake and condition, whatever findings they
    explain.
    """
    return sorted(_changes(found), key=lambda change: [*Fate].index(change.fate))


def difference_in_common(old: Report, new: Report) -> Difference:
    """Compare the findings that both reports have, with the causes that these findings show.

    Causes and conditions that follow only from findings of one report are left out.
    """
    changes = difference(old, new).changes
    both = [(one.old, one.new) for one in changes if one.old and one.new]
    return difference(
        _restrict(old, [before for before, _ in both]),
        _restrict(new, [after for _, after in both]),
    )


def cause_histories(reports: Sequence[Report]) -> list[tuple[SharedCause, CauseChange]]:
    """The causes of several versions, each once, with its fate.

    The fate compares the last version with the one before, or with the last version that has the
    cause. Causes of the last version come first, the worst before others; causes that it lacks
    follow, except those that it has under another condition.
    """
    *before, last = reports
    differences = [difference(report, last) for report in before]
    changes = [cause_changes(one) for one in differences]
    histories = []
    for shared in shared_causes(reports):
        place = next(iter(shared.groups))
        since = changes[min(place, len(changes) - 1)] if changes else []
        found = (one for one in since if shared.cause is one.new or shared.cause is one.old)
        change = next(found, None)
        if change is None and place < len(before):  # the cause is advice, which has no change
            change = _missing(shared.cause, differences[place])
        change = change or CauseChange(Fate.SAME, shared.cause, shared.cause)
        if place == len(before) or change.fate is not Fate.CHANGED:
            histories.append((shared, change))
    return histories


def _restrict(report: Report, findings: Sequence[Finding]) -> Report:
    from conformance.explain.causes import causes  # imports numpy, which is slow

    found = {"findings": [*findings], "causes": causes(findings, report.clues, report.chosen_by)}
    return report.model_copy(update=found | {"summary": Summary.of(findings)})


def _changes(found: Difference) -> Iterator[CauseChange]:
    before, after = _wrong(found.old), _wrong(found.new)
    for cause in [*after]:
        same = next((one for one in before if one.key == cause.key), None)
        if same is not None:
            before.remove(same)
            after.remove(cause)
            yield CauseChange(Fate.SAME, same, cause)
    for cause in after:
        alike = next((one for one in before if one.mistake == cause.mistake), None)
        if alike is None:
            yield _appeared(cause, found)
        else:
            before.remove(alike)
            yield CauseChange(Fate.CHANGED, alike, cause)
    for cause in before:
        yield _missing(cause, found)


def _wrong(report: Report) -> list[Cause]:
    return [cause for cause in report.causes if cause.severity is not Severity.ADVICE]


def _missing(cause: Cause, found: Difference) -> CauseChange:
    if _is_same([one for one in found.changes if one.old and one.old.id in cause.findings]):
        return CauseChange(Fate.SAME, cause, None)
    now = _verdicts_on(cause, found.new, [(one.old, one.new) for one in found.changes])
    if set(now) <= {RIGHT, WITHOUT_IT}:
        return CauseChange(Fate.GONE, cause, None)
    if RIGHT in now and set(now) <= {RIGHT, WITHOUT_IT, str(Verdict.REFUSED)}:
        return CauseChange(Fate.GONE, cause, None, f"now {_counted(now)}")
    return CauseChange(Fate.UNSEEN, cause, None, f"now {_counted(now)}")


def _appeared(cause: Cause, found: Difference) -> CauseChange:
    if _is_same([one for one in found.changes if one.new and one.new.id in cause.findings]):
        return CauseChange(Fate.SAME, None, cause)
    once = _verdicts_on(cause, found.old, [(one.new, one.old) for one in found.changes])
    if not once.keys().isdisjoint(LOOKED_AT):
        return CauseChange(Fate.NEW, None, cause)
    return CauseChange(Fate.UNSEEN_BEFORE, None, cause, f"before {_counted(once)}")


def _is_same(of_cause: Sequence[Change]) -> bool:
    """Whether a cause's findings are the same in both reports, although it is named otherwise.

    Which of several possible mistakes a cause is named after depends on its other findings.
    """
    return all(map(_is_told_alike, of_cause)) and bool(of_cause)


def _is_told_alike(change: Change) -> bool:
    """Whether a finding is equally wrong in both reports, by the same known mistake."""
    both = [one.diagnosis.name for one in (change.old, change.new) if one and one.diagnosis]
    return change.kind is ChangeKind.SAME and len({*both} - {UNEXPLAINED}) == 1


def _verdicts_on(
    cause: Cause, other: Report, pairs: Iterable[tuple[Finding | None, Finding | None]]
) -> Counter[str]:
    """Counts the states of a cause's findings in the other report."""
    explained = {*cause.findings}
    return Counter(
        _verdict_on(cause, there, other)
        for here, there in pairs
        if here is not None and here.id in explained
    )


def _verdict_on(cause: Cause, finding: Finding | None, report: Report) -> str:
    """Returns the state that the other report's finding shows for a cause."""
    if finding is None:
        return NOT_RUN
    if finding.verdict in (Verdict.CONFORMS, Verdict.ADVICE) or finding.is_rightly_refused:
        return RIGHT
    if finding.verdict is not Verdict.MISMATCH:
        return str(finding.verdict).replace("_", " ")
    is_open = not _suspects(finding, report).isdisjoint({cause.name, UNEXPLAINED})
    return OTHERWISE_WRONG if is_open and cause.severity is not Severity.NOT_TRAINED else WITHOUT_IT


def _suspects(finding: Finding, report: Report) -> set[str]:
    """All mistakes that may contribute to a wrong finding."""
    clues = report.clues_of(finding)
    if clues is not None and clues.explanations:
        return clues.suspects
    return {finding.diagnosis.name, *finding.diagnosis.also} if finding.diagnosis else set()


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{count} {words}" for words, count in found.most_common())
