"""The findings behind each cause of one report or several, and choices among findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conformance.findings.cause import EMPTY_SAMPLE, Severity
from conformance.findings.errors import AmbiguousCauseError, UnknownCauseError
from conformance.findings.finding import GENERATED, PRODUCTION
from conformance.findings.report import Summary
from conformance.findings.verdict import Check
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.findings.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class FindingFilter:
    """A filter of findings; an empty field excludes nothing."""

    verdicts: frozenset[Verdict] = frozenset()
    modes: frozenset[Mode] = frozenset()
    checks: frozenset[Check] = frozenset()

    def of(self, report: Report) -> Report:
        """Returns the report with only these findings, their summary and their causes."""
        if self == FindingFilter():
            return report
        chosen = [finding for finding in report.findings if self._keeps(finding)]
        causes = [*_causes_of(report, {finding.id for finding in chosen})]
        return report.model_copy(
            update={"findings": chosen, "summary": Summary.of(chosen), "causes": causes}
        )

    def _keeps(self, finding: Finding) -> bool:
        return (
            (not self.verdicts or finding.verdict in self.verdicts)
            and (not self.modes or finding.mode in self.modes)
            and (not self.checks or finding.check in self.checks)
        )


def _causes_of(report: Report, ids: Collection[str]) -> Iterator[Cause]:
    """Yields the causes of some findings, each with only these findings."""
    for cause in report.causes:
        if chosen := [name for name in cause.findings if name in ids]:
            yield cause.model_copy(update={"findings": chosen})


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Findings that one cause explains, the smallest reproduction first."""

    cause: Cause
    findings: tuple[Finding, ...]

    example: Finding
    """The finding that describes the cause best: its step is ordinary, even if the step is large.
    """

    @property
    def smallest(self) -> Finding:
        """The smallest reproduction."""
        return self.findings[0]

    @property
    def checks(self) -> dict[Check, int]:
        """The number of findings of each check."""
        counts = Counter(finding.check for finding in self.findings)
        return {check: counts[check] for check in Check if check in counts}

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

    By default, ``findings`` are the report's. A finding with several causes is in several groups.
    """
    groups = _groups(report, report.findings if findings is None else findings)
    return [group for group in groups if group.cause.severity is not Severity.ADVICE]


def advice_groups(report: Report) -> list[FindingGroup]:
    """Returns each form of advice with its findings."""
    groups = _groups(report, report.findings)
    return [group for group in groups if group.cause.severity is Severity.ADVICE]


@dataclass(frozen=True, kw_only=True)
class SharedCause:
    """A cause of several versions of a framework: the same mistake under the same condition."""

    groups: dict[int, FindingGroup]
    """Its findings in each report that has it, by the report's index, the last report first."""

    @property
    def newest(self) -> FindingGroup:
        """Its findings in the last report that has it."""
        return next(iter(self.groups.values()))

    @property
    def cause(self) -> Cause:
        """The cause in the last report that has it."""
        return self.newest.cause


def shared_causes(reports: Sequence[Report]) -> list[SharedCause]:
    """Returns the causes of several versions, each once: the last version's, then earlier ones'.

    Within a version, the worst comes first; advice is included. Causes of one version with the same
    mistake and condition are merged into the worst of them.
    """
    groups: dict[tuple[str, tuple[str, ...]], dict[int, FindingGroup]] = defaultdict(dict)
    for place, report in reversed([*enumerate(reports)]):
        for group in _groups(report, report.findings):
            of_cause = groups[group.cause.key]
            worst = of_cause.setdefault(place, group)
            if worst is not group:
                of_cause[place] = replace(worst, findings=(*worst.findings, *group.findings))
    return [SharedCause(groups=found) for found in groups.values()]


def _groups(report: Report, findings: Iterable[Finding]) -> list[FindingGroup]:
    chosen = {finding.id: finding for finding in findings}
    found = (
        (cause, tuple(chosen[name] for name in cause.findings if name in chosen))
        for cause in report.causes
    )
    return [
        FindingGroup(cause=cause, findings=of_cause, example=_example(report, of_cause))
        for cause, of_cause in found
        if of_cause
    ]


def _example(report: Report, findings: Sequence[Finding]) -> Finding:
    """The step of production size of the plainest check, or else the smallest ordinary step."""

    def oddity(finding: Finding) -> tuple[int, bool, bool, bool]:
        clues = report.clues_of(finding)
        is_degenerate = clues is not None and EMPTY_SAMPLE in clues.conditions
        return (
            [*Check].index(finding.check),
            finding.case != PRODUCTION,
            finding.case == GENERATED,
            is_degenerate,
        )

    return min(findings, key=oddity)


def find_cause(report: Report, name: str) -> Cause:
    """Returns the only cause with this name, a prefix of it, or its number in the list, from 1.

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
