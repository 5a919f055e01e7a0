"""Further findings at the end of a run, which tell on which facts its causes depend.

A plan sees a mistake where it happens to look. A fact that all findings of a cause share is part
of its condition only if the mistake is gone without it. So for each such fact the nearest finding
is made that lacks it: if that is wrong too, the cause has one fact less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from adapters.contract import Option
from adapters.contract.objective import Metric
from conformance.explain.causes import PARALLELISM
from conformance.explain.conditions import of_finding
from conformance.explain.step_conditions import of_step
from conformance.findings.cause import Severity
from conformance.findings.finding import Finding, FindingId
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Verdict
from conformance.runs.check import job_cell, make
from conformance.runs.recorder import message
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from adapters.contract import Description
    from conformance.findings.cause import Cause
    from conformance.findings.report import Report
    from conformance.plan.matrix import MatrixCell
    from conformance.plan.plan import Plan
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingMessage

MOST = 20
"""Findings that a run makes beyond its plan."""

TESTED = (Severity.GRADIENT, Severity.LOGGED, Severity.NOT_TRAINED)


def run(report: Report, plan: Plan, jobs: SharedJobs) -> Iterator[FindingMessage]:
    """Make the findings that tell most about the causes of a report."""
    for cell in chosen(report, plan, jobs.description):
        judgement = make(cell, jobs)
        yield message(cell, judgement, "", jobs.pool.drain_framework_seconds())


def chosen(report: Report, plan: Plan, description: Description) -> list[MatrixCell]:
    """For each fact that a cause may depend on the nearest cell that lacks it, `MOST` at most."""
    causes = [cause for cause in report.causes if cause.severity in TESTED]
    slugs = {FindingId.parse(name).slug for cause in causes for name in cause.findings}
    options = {fact for fact, part in OF_OPTIONS.items() if _is_option(part, report)}
    whole = replace(plan, size=PlanSize.FULL).cells()
    cells = filter(None, (job_cell(cell, description) for cell in whole))
    candidates = [_Candidate.of(cell) for cell in cells if cell.spec.slug in slugs]
    known, found = {finding.id for finding in report.findings}, {}
    for cause in causes:
        for cell in _without_a_fact(cause, candidates, options):
            if cell.id not in known:
                found[cell.id] = cell
    return [*found.values()][:MOST]


OF_OPTIONS = {
    **{f"in {mode}": str(mode) for mode in Mode},
    **{f"with {option}": str(option) for option in Option},
    **{f"where {part} > 1": part for part in PARALLELISM},
    "with micro-batches by tokens": "mbtokens",
    "with packed rows": "thd",
    "with padded rows": "bshd",
}
"""Facts that may stand for options in a cause's reach, each with the part of a job that it is."""


def _is_option(part: str, report: Report) -> bool:
    return part in report.chosen_by or part in PARALLELISM


class _Candidate(NamedTuple):
    """A cell that may be run, and what is known of it before."""

    cell: MatrixCell
    facts: frozenset[str]

    @classmethod
    def of(cls, cell: MatrixCell) -> Self:
        finding = Finding(id=cell.id, verdict=Verdict.CONFORMS)
        of_steps = {fact for step in cell.case.steps for fact in of_step(step)}
        return cls(cell, frozenset({*of_finding(finding, Metric.POLICY_LOSS), *of_steps}))

    def distance(self, other: _Candidate) -> tuple[int, int, str]:
        """A sort key: fewest facts that differ, then fewest ranks."""
        return len(self.facts ^ other.facts), self.cell.layout.world_size, self.cell.id


def _without_a_fact(
    cause: Cause, candidates: Sequence[_Candidate], options: AbstractSet[str]
) -> Iterator[MatrixCell]:
    """Yield the nearest cell to a cause's smallest finding without each fact that it claims."""
    places = {name: place for place, name in enumerate(cause.findings)}
    alike = [one for one in candidates if one.cell.id in places]
    if not alike:
        return
    smallest = min(alike, key=lambda one: places[one.cell.id])
    shared = frozenset.intersection(*(one.facts for one in alike))
    for fact in sorted(shared & {*cause.condition, *options}):
        lacking = [
            one
            for one in candidates
            if fact not in one.facts and one.cell.spec.slug == smallest.cell.spec.slug
        ]
        if lacking:
            yield min(lacking, key=smallest.distance).cell
