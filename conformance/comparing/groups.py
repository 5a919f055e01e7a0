"""A report in short: verdicts by mode and check, and what is wrong by the mistake behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.findings.badness import badness, explain
from conformance.findings.report import Report, Summary
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import WRONG, Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.findings.finding import Finding


@dataclass(frozen=True, kw_only=True)
class FindingFilter:
    """Which findings are looked at; a field that is empty leaves none out."""

    verdicts: frozenset[Verdict] = frozenset()
    modes: frozenset[Mode] = frozenset()
    checks: frozenset[Check] = frozenset()

    def of(self, report: Report) -> Report:
        """The report with these findings alone, its summary theirs."""
        chosen = [finding for finding in report.findings if self._holds(finding)]
        return report.model_copy(update={"findings": chosen, "summary": Summary.of(chosen)})

    def _holds(self, finding: Finding) -> bool:
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

    @property
    def example(self) -> Finding:
        """The one that is most off; of such, the first."""
        return max(self.findings, key=badness)

    @property
    def words(self) -> str:
        """What is wrong with the example, without its name."""
        found = self.example.diagnosis
        return found.explanation if found else explain(self.example)

    @property
    def error(self) -> float | None:
        """The example's; None where something was not finite, or nothing was measured."""
        return self.example.error

    @property
    def where(self) -> dict[str, int]:
        """How many findings of each check, or subject of one, in their order."""
        return dict(Counter(_slug(finding) for finding in self.findings))

    @property
    def modes(self) -> list[Mode]:
        """Those that it was found in."""
        return [mode for mode in Mode if any(f.mode is mode for f in self.findings)]

    @property
    def layouts(self) -> int:
        """How many it was found on."""
        return len({finding.layout for finding in self.findings})


def matrix(findings: Sequence[Finding]) -> dict[Check, dict[Mode, Counter[Verdict]]]:
    """Counts of verdicts, by check and mode, in the order of these."""
    cells: dict[tuple[Check, Mode], Counter[Verdict]] = defaultdict(Counter)
    for finding in findings:
        cells[finding.check, finding.mode][finding.verdict] += 1
    return {
        check: {mode: cells[check, mode] for mode in Mode if (check, mode) in cells}
        for check in Check
        if any(check is seen for seen, _ in cells)
    }


def finding_groups(findings: Sequence[Finding]) -> list[FindingGroup]:
    """All that is wrong, the worst first: what crashed, what is not finite, what is most off."""
    grouped: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict in WRONG:
            grouped[_name(finding)].append(finding)
    found = [FindingGroup(name=name, findings=tuple(grouped[name])) for name in sorted(grouped)]
    return sorted(found, key=lambda fault: (badness(fault.example), len(fault.findings)))[::-1]


def _name(finding: Finding) -> str:
    if finding.diagnosis is not None:
        return finding.diagnosis.name
    return f"{finding.verdict}: {last_line(finding.message)}"


def _slug(finding: Finding) -> str:
    return finding.identity.slug
