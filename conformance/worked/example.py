"""The finding that shows a cause best."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from adapters.contract.objective import Objective
from conformance.comparing.groups import FindingGroup
from conformance.corpus.cases import CASES_BY_NAME
from conformance.explain.find import causes
from conformance.findings.cause import Severity
from conformance.findings.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

OTHER_GRADIENTS = (Check.OFF_POLICY, Check.ADVANTAGES)
"""Checks of weights that are multiplied by derivatives or advantages."""


@dataclass(frozen=True)
class ShownCause:
    """A cause of a report, with the finding by which it is shown."""

    report: Report
    cause: Cause

    @cached_property
    def group(self) -> FindingGroup:
        """The findings that the cause explains, the best examples first."""
        ids = {*self.cause.findings}
        found = sorted((one for one in self.report.findings if one.id in ids), key=self._size)
        return FindingGroup(cause=self.cause, findings=tuple(found), example=found[0])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that the cause explains, the best examples first."""
        return self.group.findings

    @cached_property
    def example(self) -> Finding:
        """The smallest finding that shows this cause alone, or else the smallest."""
        alone = (one for one in self.findings if self._named(one) == [self.cause.name])
        return next(alone, self.findings[0])

    @cached_property
    def named(self) -> list[str]:
        """The names of the causes that a run of the example alone ends with."""
        return self._named(self.example)

    @property
    def ratios(self) -> tuple[float, float] | None:
        """The smallest and the largest observed weight in pictures, relative to the right one.

        Gradients of several terms, which may cancel, and those that are no weights are left out;
        None if nothing else is there.
        """
        found = [*self._ratios()]
        return (min(found), max(found)) if found else None

    def _ratios(self) -> Iterator[float]:
        for one in self.findings:
            is_weight = one.subject != Objective.COMBINED and one.check not in OTHER_GRADIENTS
            for sample in one.picture.samples if one.picture is not None and is_weight else ():
                for run in sample.runs:
                    if run.expected and run.observed is not None:
                        yield run.observed / run.expected

    def _named(self, finding: Finding) -> list[str]:
        return [one.name for one in causes([finding], self.report.clues)]

    def _size(self, finding: Finding) -> tuple[bool, int, bool, int, int, str]:
        """A sort key: what the cause is named after, then fewest ranks, tokens, plainest check."""
        gradient = self.cause.severity is Severity.GRADIENT
        case = CASES_BY_NAME.get(finding.case)
        tokens = sum(len(step.mask) for step in case.steps) if case else 0
        check = [*Check].index(finding.check)
        is_sum = finding.subject in ("combined", "loss")
        size = finding.layout.world_size
        return gradient and finding.picture is None, size, is_sum, tokens, check, finding.id
