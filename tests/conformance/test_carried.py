"""Mistakes that carry a number from one step to the next are one cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from adapters.contract import Job, Observation
from conformance.explain.causes import causes as find_causes
from conformance.ranks.pool import Ran
from conformance.runs import carried
from reference.aggregation import Conventions
from reference.weights import token_weights
from tests.conformance.cells import cell
from tests.findings import report, wrong

if TYPE_CHECKING:
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.runs.jobs import SharedJobs

CASES = ("split_groups", "odd_groups", "uneven_lengths", "long_prompts")
CELLS = {one.id: one for one in map(cell, CASES)}
FACTORS = tuple(
    f"policy_loss/{name}"
    for name in ("divided_by_dp", "multiplied_by_dp", "divided_by_cp", "multiplied_by_cp")
)


class Trainer:
    """Divides a step by the tokens of the step before it, or by twice the step's own tokens."""

    def __init__(self, *, is_stale: bool) -> None:
        self.description = SimpleNamespace(conventions=Conventions())
        self._is_stale = is_stale
        self._before = 1.0

    def run(self, job: Job) -> Ran:
        [step] = job.steps
        right = token_weights(step, job.aggregation, Conventions())
        count = float(step.mask.sum())
        divisor, self._before = self._before if self._is_stale else 2 * count, count
        return Ran((Observation(token_weights=(right * count / divisor,)),))


def causes() -> tuple[list[Cause], dict[str, Finding]]:
    """The causes of a report in which each cell's finding has another factor."""
    found = report(*(wrong(name, factor) for name, factor in zip(CELLS, FACTORS, strict=True)))
    assert len(found.causes) == len(CELLS)
    return found.causes, {one.id: one for one in found.findings}


def test_a_number_of_the_step_before_is_told_from_a_wrong_one() -> None:
    several, _ = causes()
    stale, wrong_count = Trainer(is_stale=True), Trainer(is_stale=False)

    assert not [*carried.of_causes(several, CELLS, cast("SharedJobs", wrong_count))]
    found = [*carried.of_causes(several, CELLS, cast("SharedJobs", stale))]
    assert {cause.findings[0] for cause, _ in found} == {*CELLS}
    assert len({*found[0][1].numbers}) == 2


def test_findings_of_a_carried_number_are_one_cause() -> None:
    several, findings = causes()
    numbers = carried.Carried(("split_groups", "odd_groups"), (0.25, 0.5))
    renamed = [*carried.renamed([(cause, numbers) for cause in several], findings)]
    [cause] = find_causes(renamed, [], {})

    assert cause.name == carried.MISTAKE
    assert {*cause.findings} == {*CELLS}
    assert "0.25 after a step of split_groups, 0.5 after one of odd_groups" in str(renamed[0])
