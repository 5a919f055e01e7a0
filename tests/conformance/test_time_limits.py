"""A hang is waited for once as long as the user allows, and others like it shortly."""

import time

import pytest

from adapters.contract import Job
from adapters.contract.objective import Objective
from conformance.ranks.time_limits import Patience, TimeLimits
from tests.jobs import job_of, step_of


def job(tokens: int = 4, objective: Objective = Objective.GSPO) -> Job:
    return job_of(step_of([1] * tokens), objective=objective)


def test_without_a_hang_every_job_has_the_time_that_the_user_allows() -> None:
    limits = TimeLimits(120)
    limits.ran(0.1)

    assert limits.of(job()) == 120


@pytest.mark.parametrize(
    ("slowest", "limit"), [(0.0, 10), (0.5, 10), (0.6, 20), (2.0, 40), (5.0, 120)]
)
def test_what_is_like_a_hang_has_twenty_times_the_slowest_job(slowest: float, limit: int) -> None:
    limits = TimeLimits(120)
    limits.hung(job())
    limits.ran(slowest)
    limits.ran(0.0)

    assert limits.of(job()) == limit


def test_another_objective_and_a_larger_step_are_not_like_it() -> None:
    limits = TimeLimits(120)
    limits.hung(job(tokens=6))
    limits.hung(job(tokens=2))

    assert limits.of(job(tokens=6)) == 10
    assert limits.of(job(tokens=7)) == 120
    assert limits.of(job(objective=Objective.POLICY)) == 120


def test_no_limit_is_longer_than_what_the_user_allows() -> None:
    limits = TimeLimits(3)
    limits.hung(job())

    assert limits.of(job()) == 3


@pytest.mark.parametrize(
    ("latest", "ends", "at_work"), [(0.05, True, {1}), (600, False, {1})], ids=["over", "goes on"]
)
def test_ranks_that_use_cpu_time_are_waited_for_as_long_as_the_user_allows(
    latest: float, ends: bool, at_work: set[int]
) -> None:
    now = time.monotonic()
    patience = Patience(now + 0.05, now + latest)
    assert not patience.ends({0: 5.0, 1: 5.0}), "what they used before tells nothing"
    time.sleep(0.05)

    assert patience.ends({0: 5.0, 1: 5.1}) is ends
    assert patience.at_work == at_work


def test_the_wait_ends_with_the_last_rank_at_work() -> None:
    now = time.monotonic()
    patience = Patience(now + 0.05, now + 600)
    patience.ends({0: 5.0})
    time.sleep(0.05)
    assert not patience.ends({0: 5.1})
    patience.look_within(0)

    assert patience.ends({0: 5.1})
    assert not patience.at_work


def test_no_rank_is_waited_for_once_another_failed() -> None:
    now = time.monotonic()
    patience = Patience(now + 300, now + 600)
    patience.ends({0: 5.0})
    patience.end_within(0)

    assert patience.seconds() == 0
    assert patience.ends({0: 5.1})
