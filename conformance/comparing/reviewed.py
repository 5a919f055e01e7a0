"""The findings in which a version is worse, or better, than the version it is based on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.cause_changes import Fate, cause_changes
from conformance.comparing.diff import Change, ChangeKind, Difference, difference
from conformance.comparing.gate import Comparing, Expecting, Outcome, Strict
from conformance.findings.cause import UNEXPLAINED, Severity
from conformance.findings.groups import finding_groups
from conformance.findings.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from conformance.comparing.cause_changes import CauseChange
    from conformance.comparing.expectations import Expectations
    from conformance.findings.finding import Finding
    from conformance.findings.groups import FindingGroup
    from conformance.findings.report import Report

BASE = Path("base")


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """Two reports of the same findings, and the findings of the later one that fail its review.

    A finding fails if it is worse than in the earlier report, or wrong and not judged there, unless
    it is expected.
    """

    difference: Difference
    failing: tuple[Finding, ...]
    declined: tuple[Finding, ...] = ()
    """Steps that the base trains and the head refuses, as the contract allows."""

    @classmethod
    def of(
        cls,
        base: Report,
        head: Report,
        may_decline: Collection[str] = (),
        expected: Expectations | None = None,
    ) -> Reviewed:
        """Compare the reports of a version and of its base.

        ``may_decline`` are the ids of findings whose steps the contract allows the head to refuse.
        """
        gate = Comparing(BASE, base, head.request)
        found = [*gate.failing(head)]
        declined = [
            one for one in found if one.verdict is Verdict.REFUSED and one.id in may_decline
        ]
        failing = tuple(
            finding
            for finding in found
            if finding not in declined
            and (expected is None or not _is_known(finding, head, expected))
        )
        return cls(difference=difference(base, head), failing=failing, declined=tuple(declined))

    @property
    def head(self) -> Report:
        """The later report."""
        return self.difference.new

    @property
    def objection(self) -> str | None:
        """The reason why nothing can be said about the head; None if there is none."""
        return Strict().objection(self.head)

    @cached_property
    def changes(self) -> list[CauseChange]:
        """The fates of the causes of either report."""
        return cause_changes(self.difference)

    @cached_property
    def worse(self) -> list[FindingGroup]:
        """The causes of failing findings, each with these findings, the worst first."""
        return finding_groups(self.head, self.failing)

    @property
    def no_longer_trained(self) -> list[Finding]:
        """Failing findings without a cause: steps that the base trains and the head refuses."""
        caused = {finding.id for group in self.worse for finding in group.findings}
        return [finding for finding in self.failing if finding.id not in caused]

    @property
    def fixed(self) -> list[CauseChange]:
        """Causes that are gone, except unexplained ones."""
        return [
            change
            for change in self.changes
            if change.fate is Fate.GONE
            and change.old is not None
            and (change.old.name != UNEXPLAINED or change.old.severity is Severity.NOT_TRAINED)
        ]


def worse(before: Mapping[str, Finding], after: Iterable[Finding]) -> Iterator[Finding]:
    """Yields the findings that are worse than the earlier findings with the same ids."""
    for finding in after:
        former = before.get(finding.id)
        if former is not None and Change(former, finding).kind is ChangeKind.WORSE:
            yield finding


def _is_known(finding: Finding, report: Report, expected: Expectations) -> bool:
    decision = Expecting(expected).decision(finding, report.clues_of(finding))
    return decision.outcome is Outcome.KNOWN
