"""A wait for ranks ends when none of them is at work, and at the time limit."""

import time

import pytest

from conformance.ranks.time_limits import Patience


def looked(patience: Patience, *seconds: float) -> bool:
    """Whether the wait ends at the last of several looks, given rank 1's CPU seconds at each."""
    for used in seconds:
        time.sleep(patience.seconds())
        ends = patience.ends({0: 5.0, 1: used})
    return ends


def test_ranks_that_use_no_cpu_time_between_two_looks_hang() -> None:
    patience = Patience(limit=600, quiet=0.05)
    assert not looked(patience, 5.0), "what they used before tells nothing"

    assert looked(patience, 5.0)
    assert not patience.at_work


def test_a_rank_that_uses_cpu_time_is_waited_for_until_it_does_not() -> None:
    patience = Patience(limit=600, quiet=0.05)
    assert not looked(patience, 5.0, 5.1, 5.2)
    assert patience.at_work == {1}

    assert looked(patience, 5.2)


@pytest.mark.parametrize("quiet", [0.02, 600])
def test_no_rank_is_waited_for_longer_than_the_user_allows(quiet: float) -> None:
    start = time.monotonic()
    patience = Patience(limit=0.1, quiet=quiet)
    used = 5.0
    while not looked(patience, used):
        used += 0.1

    assert time.monotonic() - start == pytest.approx(0.1, abs=0.04)
    assert patience.at_work == {1}


def test_no_rank_is_waited_for_once_another_failed() -> None:
    patience = Patience(limit=600, quiet=300)
    patience.end_within(0.05)

    assert not looked(patience, 5.0)
    assert looked(patience, 5.1)


def test_once_a_rank_declined_those_that_do_nothing_are_given_up_earlier() -> None:
    patience = Patience(limit=600, quiet=300)
    patience.look_within(0.1)

    assert not looked(patience, 5.0, 5.1)
    assert looked(patience, 5.1)
