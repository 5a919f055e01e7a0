"""Jobs for tests of ranks, and checks of what is left when they end."""

import os

from adapters.contract import Job, Layout
from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step
from tests.jobs import job_of

ACTIVE = Step.of([Sample(prompt_length=2, loss_mask=[1, 1], group=i) for i in range(2)])

MASKED = Step.of([Sample(prompt_length=2, loss_mask=[i, i], group=i) for i in range(2)])


def job(step: Step = ACTIVE, *, dp: int = 2, mode: Mode = Mode.TOKEN_MEAN) -> Job:
    aggregation = Aggregation(mode, 4 if mode is Mode.CONSTANT else None)
    return job_of(step, aggregation=aggregation, layout=Layout(dp=dp))


def assert_matches(pattern: str, text: str) -> None:
    import re

    assert re.search(pattern, text, re.DOTALL), text


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


LIMIT = 4.0
"""The time limit of a job in seconds; a job that takes longer is stopped soon after."""
