"""A line is proven by runs with the values that it had to have."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from adapters.contract import Depth, Job, Layout
from adapters.contract.job import Configuration
from conformance.corpus.cases import CORPUS, Case
from conformance.findings.verdict import Verdict
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import RankPool
from conformance.runs.check import judge_outcome
from conformance.runs.jobs import SharedJobs
from conformance.tracing.proof import Prover
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from conformance.tracing.tracer import trace
from reference.aggregation import Aggregation, Mode
from tests.tracing.mistaken import MistakenAdapter

CASES = ("uneven_lengths", "fully_masked_sample", "unequal_shards")


@dataclass(frozen=True, kw_only=True)
class OfWay(MatrixCell):
    """A finding of one of the toy's ways."""

    way: str

    @property
    def job(self) -> Job:
        return replace(super().job, configuration=Configuration(divisor=self.way))

    @property
    def job_id(self) -> str:
        return f"{super().job_id}/{self.way}"


def cells(way: str) -> list[OfWay]:
    cases: list[Case] = [case for case in CORPUS if case.name in CASES]
    return [
        OfWay(
            aggregation=Aggregation(Mode.TOKEN_MEAN),
            case=case,
            layout=Layout(dp=2),
            depth=Depth.STEP,
            way=way,
        )
        for case in cases
    ]


@pytest.fixture(scope="module")
def jobs() -> Iterator[SharedJobs]:
    with RankPool(MistakenAdapter(), None, 2) as pool:
        yield SharedJobs(pool)


def wrong(way: str, jobs: SharedJobs) -> list[OfWay]:
    judged = [(cell, judge_outcome(cell, jobs.run(cell.job), jobs)) for cell in cells(way)]
    return [cell for cell, one in judged if one.verdict is Verdict.MISMATCH]


def traced(cell: OfWay, jobs: SharedJobs) -> Trace:
    found = trace(cell.job, jobs.pool)
    assert isinstance(found, TracedJob)
    return Trace.of(cell.way, found, None, None)


@pytest.mark.parametrize(
    ("way", "text", "words"),
    [
        ("clamped", "torch.clamp_min(mask.sum(), 1)", "active tokens of a sample in"),
        ("in_python_on_all", "row.sum().item()", "active tokens of a sample in"),
    ],
)
def test_the_line_is_proven_with_which_all_findings_conform(
    jobs: SharedJobs, way: str, text: str, words: str
) -> None:
    of_cause = wrong(way, jobs)
    found = Prover(jobs).proven(traced(of_cause[0], jobs), of_cause)

    lines = [linecache.getline(one.line.file, one.line.number) for one in found]
    assert text in lines[0]
    assert found[0].why.startswith("proven: ")
    assert words in found[0].why
    extent = f"{len(of_cause)} of its findings conform" if len(of_cause) > 1 else "its only finding"
    assert extent in found[0].why


@pytest.mark.parametrize(
    ("way", "text", "words"),
    [
        ("averaged", "self.gradient.div_(", "with 1 instead of 2, 3 of its findings conform"),
        ("times_ranks", "count * dist.get_world_size()", "(active tokens of the step / ranks)"),
    ],
)
def test_a_factor_that_any_line_could_make_good_is_said_of_suspected_lines_alone(
    jobs: SharedJobs, way: str, text: str, words: str
) -> None:
    of_cause = wrong(way, jobs)
    before = traced(of_cause[0], jobs)
    after = Prover(jobs).proven(before, of_cause)

    assert [one.line for one in after] == [one.line for one in before.suspects]
    told = [(linecache.getline(one.line.file, one.line.number), one.why) for one in after]
    assert any(text in line and words in why for line, why in told)
    assert not any("proven" in one.why for one in after)
