"""A job runs once for all the checks that share it, in whatever order and process they are made."""

import random
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import SimpleNamespace

import pytest

from adapters.contract import Description, Job, Layout
from adapters.native.adapter import NativeAdapter
from conformance.findings.verdict import Check, Verdict
from conformance.plan.matrix import AnyMatrixCell, MatrixCell
from conformance.plan.plan import Plan
from conformance.plan.quick import pairwise
from conformance.plugin.controller import job_scheduling
from conformance.plugin.options import SETTINGS, settings_of
from conformance.ranks.pool import Crashed
from conformance.runs.check import job_cells, make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode

LAYOUTS = (Layout(dp=2), Layout(dp=2, cp=2, micro_batches=2))


def cells(*checks: Check) -> list[AnyMatrixCell]:
    return Plan(layouts=LAYOUTS, checks=frozenset(checks or Check)).cells()


@dataclass
class CountingRanks:
    """Simulates ranks that crash on every job and can run the next one; keeps the jobs."""

    jobs: list[Job] = field(default_factory=list)
    description: Description = field(default_factory=NativeAdapter().describe)
    is_running: bool = True
    busy: bool = False

    def run(self, job: Job) -> Crashed:
        self.begin(job)
        return self.outcome()

    def begin(self, job: Job) -> None:
        assert not self.busy
        self.jobs.append(job)
        self.busy = True

    def outcome(self) -> Crashed:
        assert self.busy
        self.busy = False
        return Crashed(f"crash {len(self.jobs)}")


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_job_runs_once_in_any_order_of_its_checks(seed: int, is_running: bool) -> None:
    chosen = cells(Check.WEIGHTS, Check.METRIC, Check.SHARDING)
    random.Random(seed).shuffle(chosen)
    ranks = CountingRanks(is_running=is_running)
    jobs = SharedJobs(ranks, chosen)  # type: ignore[arg-type]

    messages: dict[str, set[str]] = {}
    for place, cell in enumerate(chosen, start=1):
        jobs.expect(job_cells(chosen[place:], ranks.description))
        finding = make(cell, jobs)
        assert finding.verdict is Verdict.CRASHED
        messages.setdefault(cell.job_id, set()).add(str(finding.message))

    assert len(ranks.jobs) == len(messages) < len(chosen)
    assert all(len(of_job) == 1 for of_job in messages.values())


def three_cells() -> tuple[list[MatrixCell], CountingRanks, SharedJobs]:
    chosen = [cell for cell in cells(Check.WEIGHTS)[:3] if isinstance(cell, MatrixCell)]
    ranks = CountingRanks()
    return chosen, ranks, SharedJobs(ranks, chosen)  # type: ignore[arg-type]


def test_the_expected_cells_job_has_begun_when_an_outcome_is_handed_out() -> None:
    (first, second, _), ranks, jobs = three_cells()

    jobs.expect([second])
    jobs.outcome(first)

    assert ranks.jobs == [first.job, second.job]
    assert jobs.outcome(second) == Crashed("crash 2")


def test_cells_of_jobs_that_have_run_are_passed_over_for_one_of_another() -> None:
    first, *others = [cell for cell in cells() if isinstance(cell, MatrixCell)]
    alike = next(cell for cell in others if cell.job_id == first.job_id)
    different = next(cell for cell in others if cell.job_id != first.job_id)
    ranks = CountingRanks()
    jobs = SharedJobs(ranks, [first, alike, different])  # type: ignore[arg-type]

    jobs.expect([alike, different])
    jobs.outcome(first)

    assert ranks.jobs == [first.job, different.job]
    assert jobs.outcome(alike) == Crashed("crash 1")
    assert jobs.outcome(different) == Crashed("crash 2")


def test_a_job_that_was_begun_keeps_its_outcome_while_others_run() -> None:
    (first, second, third), ranks, jobs = three_cells()

    jobs.expect([second])
    jobs.outcome(first)
    assert jobs.run(third.job) == Crashed("crash 3")

    assert jobs.outcome(second) == Crashed("crash 2")
    assert len(ranks.jobs) == 3


def test_a_cell_that_was_expected_and_never_asked_for_costs_one_job() -> None:
    (first, second, third), ranks, jobs = three_cells()

    jobs.expect([second])
    jobs.outcome(first)
    jobs.expect([])

    assert jobs.outcome(third) == Crashed("crash 3")
    assert len(ranks.jobs) == 3


def test_only_cells_that_one_job_decides_are_run_beforehand() -> None:
    description = replace(NativeAdapter().describe(), modes=frozenset({Mode.TOKEN_MEAN}))
    ranks = CountingRanks(description=description)
    jobs = SharedJobs(ranks)  # type: ignore[arg-type]

    for cell in cells():
        ahead = [*job_cells([cell], description)]
        if type(cell) is MatrixCell:
            supported = make(cell, jobs).verdict is not Verdict.UNSUPPORTED
            assert ahead == [cell] * supported
        else:
            assert not ahead


def test_an_outcome_is_not_kept_longer_than_it_is_asked_for() -> None:
    [cell, *_] = cells(Check.WEIGHTS)
    ranks = CountingRanks()
    jobs = SharedJobs(ranks, [cell])  # type: ignore[arg-type]

    assert isinstance(cell, MatrixCell)
    assert jobs.outcome(cell) != jobs.outcome(cell)


def test_cells_of_one_job_id_have_equal_jobs_and_others_have_not() -> None:
    jobs: dict[str, Job] = {}
    for cell in cells():
        if isinstance(cell, MatrixCell):
            assert jobs.setdefault(cell.job_id, cell.job) == cell.job

    ordinary = [job for name, job in jobs.items() if not name.startswith("arguments")]
    assert all(one != other for one, other in combinations(ordinary[:200], 2))


def test_a_worker_of_pytest_xdist_gets_all_findings_of_a_job() -> None:
    chosen = cells()
    settings = SimpleNamespace(plan=SimpleNamespace(cells=lambda: chosen))
    config = SimpleNamespace(getvalue=lambda _: ["popen"], stash={SETTINGS: settings})
    scheduling = job_scheduling(config, None)
    suite = "conformance/suite/test_conformance.py::test_finding"
    scopes = {cell.id: scheduling._split_scope(f"{suite}[{cell.id}]") for cell in chosen}

    assert scopes == {cell.id: cell.job_id for cell in chosen}


def test_without_the_suite_pytest_xdist_asks_for_no_settings() -> None:
    config = SimpleNamespace(getvalue=lambda _: ["popen"])
    scheduling = job_scheduling(config, None)

    assert scheduling._split_scope("tests/test_one.py::test_two[a]") == "tests/test_one.py"


@pytest.mark.parametrize(
    ("given", "layouts"),
    [
        (["--layout=dp1-cp1-mb1-thd"], ["dp1-cp1-mb1-thd"]),
        (["--max-ranks=1"], ["dp1-cp1-mb1-thd", "dp1-cp1-mb2-thd", "dp1-cp1-mbuneven-thd"]),
    ],
)
def test_suite_without_an_adapter_keeps_to_the_layouts_and_ranks_asked_for(
    pytester: pytest.Pytester, given: list[str], layouts: list[str]
) -> None:
    settings = settings_of(pytester.parseconfig(*given))

    found = [str(layout) for layout in settings.plan.layouts]
    assert set(layouts) <= set(found)
    assert all(layout.world_size == 1 for layout in settings.plan.layouts)


def test_few_layouts_have_every_pair_of_properties_that_all_layouts_have() -> None:
    every = NativeAdapter().layouts()
    few = pairwise(every)

    def pairs(layouts: list[Layout]) -> set[frozenset[tuple[str, object]]]:
        return {
            frozenset(pair) for layout in layouts for pair in combinations(vars(layout).items(), 2)
        }

    assert set(few) < set(every)
    assert pairs(few) == pairs([*every])
