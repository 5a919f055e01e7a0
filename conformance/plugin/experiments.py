"""Further findings at the end of a run, which test the conditions of its causes.

A plan shows a mistake only in its own cells. A fact that all findings of a cause share is part of
its condition only if the mistake does not show without it. So for each fact and option in a
condition, the nearest finding without it is made: if that finding is wrong too, the fact is
dropped. If a factor may be one of several counts, a finding is made in which these counts differ.
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
"""The most findings that a run makes beyond its plan."""

TESTED = ((Severity.GRADIENT, Severity.LOGGED, Severity.NOT_TRAINED), (Severity.ADVICE,))
"""Severities of the causes to test, in order: advice gets the findings that are left."""


def run(recorder: FindingRecorder, jobs: SharedJobs) -> None:
    """Test the conditions of the causes of a complete run with at most `MOST` further findings.

    Dropping a fact may change causes and their conditions, so there are several rounds.
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
    """The cells that lack a fact of a cause's condition, those for the worst causes first."""
    findings = {finding.id: finding for finding in report.findings}
    tested = [
        (cause, [one for one in cause.findings if is_worst(findings[one], cause)])
        for cause in report.causes
        if cause.severity in severities
    ]
    slugs = {findings[name].identity.slug for _, names in tested for name in names}
    slugs.add(Check.REJECTION)  # only this check's objective rejects tokens
    of_slugs = (cell for cell in plan.chosen_of_cases if cell.spec.slug in slugs)
    cells = job_cells(of_slugs, description)
    candidates = [_candidate(cell, report) for cell in cells]
    telling = chain.from_iterable(_telling(*one, candidates) for one in tested)
    return [*{cell.id: cell for cell in telling if cell.id not in findings}.values()]


class _Candidate(NamedTuple):
    """A cell that may be run, with its facts known in advance."""

    cell: MatrixCell
    options: frozenset[str]
    facts: frozenset[str]

    def is_looked_at_as(self, other: _Candidate) -> bool:
        """Whether another cell has the same check and mode."""
        return self.cell.spec.slug == other.cell.spec.slug and (
            self.cell.aggregation.mode is other.cell.aggregation.mode
        )

    def distance(self, other: _Candidate) -> tuple[int, int, str]:
        """A sort key: fewest different facts first, then fewest ranks."""
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
    """Yield the nearest cells that test a cause: with different counts, and without each fact.

    Nearest means nearest to the finding with fewest options, on the same check if a cell of that
    check lacks the fact. The framework's cut of a step is not known in advance: samples are assumed
    to be dealt in order.
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
