"""Crashes with batches that the framework's own code never makes."""

from dataclasses import dataclass, replace

import pytest

from adapters.contract import BatchProperty, Depth, Description, Job, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import ALL_CASES
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import Crashed
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode

NEVER_MADE = {BatchProperty.EMPTY_SAMPLE: "its worker"}


@dataclass
class Crashing:
    """Stands where ranks are that crash whatever they are given."""

    description: Description

    def run(self, job: Job) -> Crashed:
        """The same whatever the job."""
        return Crashed("ZeroDivisionError: division by zero")


def finding(case: str, never_made: dict[BatchProperty, str]) -> Judgement:
    chosen = next(one for one in ALL_CASES if one.name == case)
    cell = MatrixCell(
        aggregation=chosen.aggregation(Mode.TOKEN_MEAN),
        case=chosen,
        layout=Layout(),
        depth=Depth.STEP,
    )
    description = replace(NativeAdapter().describe(), never_made=never_made)
    return make(cell, SharedJobs(Crashing(description)))  # type: ignore[arg-type]


def test_crash_with_a_batch_that_is_never_made_is_advice() -> None:
    advised = finding("fully_masked_sample", NEVER_MADE)

    assert advised.verdict is Verdict.ADVICE
    assert advised.diagnosis.name == "never_made"
    assert advised.diagnosis.explanation == (
        "a batch with a sample without active tokens crashes, which its worker never makes, and"
        " code of a user's in its place may: ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize("case", ["uneven_lengths", "rejected_sample"])
def test_crash_with_another_batch_is_one(case: str) -> None:
    """That a sample has no active token left is the doing of the framework's own rejection."""
    assert finding(case, NEVER_MADE).verdict is Verdict.CRASHED


def test_crash_is_one_where_nothing_is_said_of_batches() -> None:
    assert finding("fully_masked_sample", {}).verdict is Verdict.CRASHED
