"""Further findings at the end of a run, which tell on which facts its causes depend.

A plan sees a mistake where it happens to look. A fact that all findings of a cause share is part
of its condition only if the mistake is gone without it. So for each fact and option that a cause
claims the nearest finding is made that lacks it: if that is wrong too, the cause claims one less.
Where a factor may be that of several counts, a finding is made in which these are different.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract.objective import Metric
from conformance.explain.causes import is_worst
from conformance.explain.conditions.facts import of_cut_in_order, of_finding, of_steps
from conformance.explain.reach import options
from conformance.findings.cause import Severity
from conformance.findings.finding import Finding
from conformance.findings.verdict import Check, Verdict
from conformance.plan.quick import has_different_counts
from conformance.runs.beyond_plan import made
from conformance.runs.check import job_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Description
    from conformance.findings.cause import Cause
    from conformance.findings.report import Report
    from conformance.plan.matrix import MatrixCell
    from conformance.plan.plan import Plan
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingRecorder

MOST = 18
"""Findings that a run makes beyond its plan."""

TESTED = ((Severity.GRADIENT, Severity.LOGGED, Severity.NOT_TRAINED), (Severity.ADVICE,))
"""The causes that are tested, in turn: advice has what the others leave."""


def run(recorder: FindingRecorder, jobs: SharedJobs) -> None:
    """Test the claims of the causes of a complete run with at most `MOST` further findings.

    A claim that is dropped may bring up another one, so that there are several rounds.
    """
    left = MOST
    for severities in TESTED:
        while left and (report := recorder.planned) is not None:
            cells = chosen(report, recorder.settings.plan, jobs.description, severities)[:left]
            if not cells:
                break
            left -= len([*made(cells, recorder, jobs)])


def chosen(
    report: Report, plan: Plan, description: Description, severities: Sequence[Severity]
) -> list[MatrixCell]:
    """The cells that lack what causes claim to depend on, those of the worst causes first."""
    findings = {finding.id: finding for finding in report.findings}
    tested = [
        (cause, [one for one in cause.findings if is_worst(findings[one], cause)])
        for cause in report.causes
        if cause.severity in severities
    ]
    slugs = {findings[name].identity.slug for _, names in tested for name in names}
    slugs.add(Check.REJECTION)  # which alone rejects tokens
    of_slugs = (cell for cell in plan.chosen_of_cases if cell.spec.slug in slugs)
    cells = job_cells(of_slugs, description)
    candidates = [_candidate(cell, report) for cell in cells]
    telling = chain.from_iterable(_telling(*one, candidates) for one in tested)
    return [*{cell.id: cell for cell in telling if cell.id not in findings}.values()]


class _Candidate(NamedTuple):
    """A cell that may be run, and what is known of it before."""

    cell: MatrixCell
    options: frozenset[str]
    facts: frozenset[str]

    def is_looked_at_as(self, other: _Candidate) -> bool:
        """Whether another cell is of the same check and mode."""
        return self.cell.spec.slug == other.cell.spec.slug and (
            self.cell.aggregation.mode is other.cell.aggregation.mode
        )

    def distance(self, other: _Candidate) -> tuple[int, int, str]:
        """A sort key: fewest facts that differ, then fewest ranks."""
        return len(self.facts ^ other.facts), self.cell.layout.world_size, self.cell.id


def _candidate(cell: MatrixCell, report: Report) -> _Candidate:
    finding = Finding(id=cell.id, verdict=Verdict.CONFORMS)
    set_by_user = frozenset(options(finding, report.chosen_by))
    facts = {
        *of_finding(finding, Metric.POLICY_LOSS),
        *of_steps(cell.case.steps, cell.layout),
        *chain.from_iterable(of_cut_in_order(step, cell.layout) for step in cell.case.steps),
        *set_by_user,
    }
    return _Candidate(cell, set_by_user, frozenset(facts))


def _telling(
    cause: Cause, findings: Sequence[str], candidates: Sequence[_Candidate]
) -> Iterator[MatrixCell]:
    """Yield the nearest cell whose counts differ, for an ambiguous cause, and without each claim.

    That is nearest to the finding which needs the fewest options, and of the same check if any such
    lacks the fact. How a framework cuts a step is not known before it has: samples are taken to be
    dealt in order.
    """
    alike = [one for one in candidates if one.cell.id in findings]
    if not alike:
        return
    plainest = min(alike, key=lambda one: (len(one.options), findings.index(one.cell.id)))
    slug = plainest.cell.spec.slug
    alike = [one for one in candidates if plainest.is_looked_at_as(one)]
    if cause.also and (telling := [one for one in alike if has_different_counts(one.cell)]):
        yield min(telling, key=plainest.distance).cell
    for claim in (*cause.condition, *cause.untested, *sorted(plainest.options)):
        lacking = [one for one in candidates if claim not in one.facts]
        of_check = [one for one in lacking if one.cell.spec.slug == slug] or lacking
        if claim in plainest.facts and of_check:
            yield min(of_check, key=plainest.distance).cell
