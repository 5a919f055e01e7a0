"""The causes of all that is wrong in a report, and the findings behind each of one or several."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.explain.conditions import EMPTY_SAMPLE, METRIC_CHECKS
from conformance.explain.cover import Table, cover, explanation
from conformance.findings.badness import badness, failure
from conformance.findings.cause import UNEXPLAINED, Cause, Impact, Severity
from conformance.findings.errors import AmbiguousCauseError, UnknownCauseError
from conformance.findings.finding import GENERATED, PRODUCTION
from conformance.findings.report import Summary
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import WRONG, Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from conformance.explain.cover import Pair
    from conformance.findings.cause import Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report


def causes(findings: Sequence[Finding], clues: Sequence[Clues]) -> list[Cause]:
    """The causes of a report's findings, the worst first."""
    known = [(finding, clues[finding.clues]) for finding in findings if finding.clues is not None]
    table = Table(known)
    by_name = {finding.id: finding for finding in findings}
    found = [*_explained(table, by_name)]
    claimed = {name for cause in found for name in cause.findings}
    left = [finding for finding in findings if finding.id not in claimed]

    def harm(cause: Cause) -> tuple[int, tuple[bool, bool, float, float], int]:
        worst = max(badness(by_name[name]) for name in cause.findings)
        return -cause.severity.rank, worst, len(cause.findings)

    return sorted([*found, *_alike(left, table)], key=harm, reverse=True)


def _explained(table: Table, findings: Mapping[str, Finding]) -> Iterator[Cause]:
    """Yield the causes of the findings that known mistakes explain."""
    pairs = cover(table)
    claims: dict[Pair, dict[str, Finding]] = {pair: {} for pair in pairs}
    for name, explanations in table.explanations.items():
        for part in explanation(explanations, pairs) or ():
            claims[next(p for p in pairs if part.is_given_by([p]))][name] = findings[name]
    for pair, claimed in claims.items():
        yield _cause(pair.mistake, MISTAKES[pair.mistake].says, pair.condition, [*claimed.values()])


def _alike(findings: Iterable[Finding], table: Table) -> Iterator[Cause]:
    """Yield a cause for all findings that failed in the same way."""
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.verdict in (*WRONG, Verdict.ADVICE):
            groups[_kind(finding)].append(finding)
    for (name, form), group in groups.items():
        statements = {failure(finding) for finding in group if finding.diagnosis is None}
        statement = statements.pop() if len(statements) == 1 else form
        claims = sum(table.bits.get(finding.id, 0) for finding in group)
        condition = table.described(claims) if claims else ()
        yield _cause(name, statement, condition, group)


def _kind(finding: Finding) -> tuple[str, str]:
    """How a finding failed: a name and words that do not depend on its numbers."""
    diagnosis = finding.diagnosis
    if diagnosis is None:
        return finding.verdict, numberless(failure(finding))
    if finding.is_of_bad_input:
        is_advice = finding.verdict is Verdict.ADVICE
        rule = ", against a rule of another framework" if is_advice else ""
        stated = _stated(diagnosis.name)
        return diagnosis.name, f"{finding.check}: {stated}{rule}"
    if diagnosis.name == UNEXPLAINED:
        pattern = diagnosis.explanation.partition("; ")[0].rpartition(", ")[2]
        return UNEXPLAINED, f"{MISTAKES[UNEXPLAINED].says}: {pattern}"
    return diagnosis.name, _stated(diagnosis.name)


def _stated(name: str) -> str:
    """What a mistake does; a name may be of several mistakes, which a finding cannot tell apart."""
    return MISTAKES[name].says if name in MISTAKES else name.replace("_", " ")


def _cause(
    name: str, statement: str, condition: Sequence[str], findings: Sequence[Finding]
) -> Cause:
    smallest_first = sorted(findings, key=_size)
    places = {finding.place for finding in findings}
    return Cause(
        name=name,
        condition=[*condition],
        severity=min(map(_severity, findings), key=lambda severity: severity.rank),
        statement=", ".join([statement, *condition]),
        impact=Impact.of(findings),
        place=places.pop() if len(places) == 1 else None,
        findings=[finding.id for finding in smallest_first],
    )


def _size(finding: Finding) -> tuple[int, int, int, bool, str]:
    """A sort key: fewest ranks first, then the plainest check, the shortest layout, and the id.

    A case of the corpus comes before generated ones, which a seed has to be given for.
    """
    layout, check = finding.layout, [*Check].index(finding.check)
    is_generated = finding.case == GENERATED
    return layout.world_size, check, len(str(layout)), is_generated, finding.id


def _severity(finding: Finding) -> Severity:
    if finding.verdict is Verdict.ADVICE:
        return Severity.ADVICE
    if finding.is_of_bad_input and finding.scale is None:
        return Severity.ACCEPTED
    if finding.verdict is not Verdict.MISMATCH:
        return Severity.NOT_TRAINED
    is_logged = finding.identity.slug.startswith(METRIC_CHECKS)
    return Severity.LOGGED if is_logged else Severity.GRADIENT


@dataclass(frozen=True, kw_only=True)
class FindingFilter:
    """Which findings are kept; an empty field leaves none out."""

    verdicts: frozenset[Verdict] = frozenset()
    modes: frozenset[Mode] = frozenset()
    checks: frozenset[Check] = frozenset()

    def of(self, report: Report) -> Report:
        """Returns the report with these findings alone, their summary and their causes."""
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
    """Yields the causes of some findings, without their other findings."""
    for cause in report.causes:
        if chosen := [name for name in cause.findings if name in ids]:
            yield cause.model_copy(update={"findings": chosen})


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Findings that one cause explains, the smallest reproduction first."""

    cause: Cause
    findings: tuple[Finding, ...]

    example: Finding
    """What shows best in words what the cause does: it need not be small, but an ordinary step."""

    @property
    def smallest(self) -> Finding:
        """The smallest reproduction."""
        return self.findings[0]

    @property
    def checks(self) -> dict[Check, int]:
        """How many findings there are of each check."""
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

    Without ``findings``, those of the report; a finding with several causes is in several groups.
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
    """Its findings in each report that has it, by the report's place, the last report first."""

    @property
    def newest(self) -> FindingGroup:
        """Its findings in the last report that has it."""
        return next(iter(self.groups.values()))

    @property
    def cause(self) -> Cause:
        """The cause in the last report that has it."""
        return self.newest.cause


def shared_causes(reports: Sequence[Report]) -> list[SharedCause]:
    """Returns the causes of several versions, each once: those of the last, then those before it.

    Of each version the worst comes first; advice is among them.
    """
    groups: dict[tuple[str, tuple[str, ...]], dict[int, FindingGroup]] = defaultdict(dict)
    for place, report in reversed([*enumerate(reports)]):
        for group in _groups(report, report.findings):
            groups[group.cause.key][place] = group
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
    """Of the plainest check the step of production size, or else the smallest ordinary step."""

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
