"""Jobs that run at the same time, on pools of ranks of their own."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from adapters.contract import Job
from adapters.contract.job import Edit
from adapters.native.adapter import NativeAdapter
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from conformance.ranks.recording.editing import span_of
from conformance.ranks.side_by_side import SideBySide
from tests import broken
from tests.conformance.ranks import ACTIVE, MASKED, job


@pytest.fixture(autouse=True)
def five_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 5)


def sizes(outcomes: Iterable[Ran | Declined | Crashed]) -> list[int]:
    return [len(one.observations) for one in outcomes if isinstance(one, Ran)]


@pytest.mark.parametrize("size", [2, 8])
def test_outcomes_come_in_the_order_of_their_jobs(size: int) -> None:
    """This holds if there are cores for two pools, and if there are too few for one."""
    with RankPool(NativeAdapter(), None, 1) as pool, SideBySide(pool, size) as ranks:
        several = [1, 2, 2, 1, 1]

        assert sizes(ranks.outcomes(job(dp=dp) for dp in several)) == several


def test_a_job_begins_while_the_one_before_runs() -> None:
    begun, ended = list[int](), list[int]()

    def jobs() -> Iterator[Job]:
        for number in range(4):
            begun.append(number - len(ended))
            yield job()

    with RankPool(NativeAdapter(), None, 1) as pool, SideBySide(pool, 2) as ranks:
        for _ in ranks.outcomes(jobs()):
            ended.append(1)

    assert begun == [0, 1, 1, 1]


def test_jobs_after_a_crash_run() -> None:
    steps = (ACTIVE, MASKED, ACTIVE, ACTIVE)
    with RankPool(broken.Raising(), None, 1) as pool, SideBySide(pool, 2) as ranks:
        outcomes = [*ranks.outcomes(map(job, steps))]

    assert [type(one) for one in outcomes] == [Ran, Crashed, Ran, Ran]


def test_jobs_after_an_edit_whose_step_leaves_state_behind_run() -> None:
    """Otherwise all later edits would raise as well, and no line could be proven."""
    file = str(broken.__file__)
    [last] = (
        node
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node) == "type(self).is_within = False"
    )
    raising = replace(job(), replaced=Edit(file, span_of(last), "1 / 0"))
    with RankPool(broken.LeavingStateBehind(), None, 1) as pool, SideBySide(pool, 2) as ranks:
        outcomes = [*ranks.outcomes([job(), raising, job(), job(), job()])]

    assert [type(one) for one in outcomes] == [Ran, Declined, Ran, Ran, Ran]


def test_a_caller_that_has_enough_can_ask_for_others() -> None:
    with RankPool(NativeAdapter(), None, 1) as pool, SideBySide(pool, 1) as ranks:
        enough = [*islice(ranks.outcomes(job(dp=1) for _ in range(9)), 2)]

        assert sizes([*enough, *ranks.outcomes([job(dp=1)])]) == [1, 1, 1]
