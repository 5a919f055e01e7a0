"""The findings of a report behind each of its causes, and choices among findings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.findings.cause import Severity
from conformance.findings.errors import AmbiguousCauseError, UnknownCauseError
from conformance.findings.report import Summary
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.findings.verdict import Check, Verdict


@dataclass(frozen=True, kw_only=True)
class FindingFilter:
    """Which findings are kept; an empty field leaves none out."""

    verdicts: frozenset[Verdict] = frozenset()
    modes: frozenset[Mode] = frozenset()
    checks: frozenset[Check] = frozenset()

    def of(self, report: Report) -> Report:
        """Returns the report with these findings alone and their summary."""
        if self == FindingFilter():
            return report
        chosen = [finding for finding in report.findings if self._keeps(finding)]
        return report.model_copy(update={"findings": chosen, "summary": Summary.of(chosen)})

    def _keeps(self, finding: Finding) -> bool:
        return (
            (not self.verdicts or finding.verdict in self.verdicts)
            and (not self.modes or finding.mode in self.modes)
            and (not self.checks or finding.check in self.checks)
        )


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Findings that one cause explains, the smallest reproduction first."""

    cause: Cause
    findings: tuple[Finding, ...]

    @property
    def example(self) -> Finding:
        """The smallest reproduction."""
        return self.findings[0]

    @property
    def where(self) -> dict[str, int]:
        """How many findings there are of each check, or subject of one, in their order."""
        slugs = sorted(finding.identity.slug for finding in self.findings)
        return dict(Counter(slugs))

    @property
    def modes(self) -> list[Mode]:
        """The modes of the findings."""
        return [mode for mode in Mode if any(f.mode is mode for f in self.findings)]

    @property
    def layouts(self) -> int:
        """The number of layouts of the findings."""
        return len({finding.layout for finding in self.findings})


def finding_groups(report: Report, findings: Iterable[Finding] | None = None) -> list[FindingGroup]:
    """Returns the causes of what is wrong, the worst first, each with its findings.

    Without ``findings``, those of the report; a finding with several causes is in several groups.
    """
    chosen = {
        finding.id: finding for finding in (report.findings if findings is None else findings)
    }
    groups = (
        FindingGroup(cause=cause, findings=tuple(chosen[i] for i in cause.findings if i in chosen))
        for cause in report.causes
        if cause.severity is not Severity.ADVICE
    )
    return [group for group in groups if group.findings]


def find_cause(report: Report, name: str) -> Cause:
    """Returns the cause of a name, of the beginning of one, or of a place in the list, from 1.

    Raises:
        UnknownCauseError: there is none.
        AmbiguousCauseError: there are several.
    """
    numbered = {str(number): cause for number, cause in enumerate(report.causes, 1)}
    found = [number for number, cause in numbered.items() if name in (number, cause.name)] or [
        number for number, cause in numbered.items() if cause.name.startswith(name)
    ]
    if len(found) == 1:
        return numbered[found[0]]
    choices = "; ".join(
        f"{number}, {numbered[number].name}: {numbered[number].statement}"
        for number in found or numbered
    )
    hint = f"choose {choices}" if choices else "it has none"
    if found:
        raise AmbiguousCauseError(f"{len(found)} causes are named {name!r}", hint)
    raise UnknownCauseError(f"the report has no cause {name!r}", hint)
