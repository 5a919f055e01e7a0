"""The wrong findings of a report in groups, one for each mistake behind them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from conformance.findings.badness import badness, explain
from conformance.findings.report import Summary
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import WRONG
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Findings that are wrong by one mistake; ``name`` is its diagnosis, or ``crashed``."""

    name: str
    findings: tuple[Finding, ...]

    @cached_property
    def example(self) -> Finding:
        """The finding that is most off; of several such, the first."""
        return max(self.findings, key=badness)

    @property
    def words(self) -> str:
        """What is wrong with the example, without the name of the mistake."""
        found = self.example.diagnosis
        return found.explanation if found else explain(self.example)

    @property
    def where(self) -> dict[str, int]:
        """How many findings there are of each check, or subject of one, in their order."""
        return dict(Counter(finding.identity.slug for finding in self.findings))

    @property
    def modes(self) -> list[Mode]:
        """The modes of the findings."""
        return [mode for mode in Mode if any(f.mode is mode for f in self.findings)]

    @property
    def layouts(self) -> int:
        """The number of layouts of the findings."""
        return len({finding.layout for finding in self.findings})


def finding_groups(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Returns all that is wrong, the worst first: crashes, what is not finite, what is most off."""
    grouped: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict in WRONG:
            grouped[_name(finding)].append(finding)
    found = [FindingGroup(name=name, findings=tuple(grouped[name])) for name in sorted(grouped)]
    return sorted(found, key=lambda group: (badness(group.example), len(group.findings)))[::-1]


def _name(finding: Finding) -> str:
    if finding.diagnosis is not None:
        return finding.diagnosis.name
    return f"{finding.verdict}: {last_line(finding.message)}"
