"""The fixture that checks a user's own trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from conformance.own_trainer.check import OwnTrainerCheck
    from conformance.own_trainer.step import Step

CHECKS: pytest.StashKey[list[OwnTrainerCheck]] = pytest.StashKey()
"""The stash key of the checks that a test has begun."""


@pytest.fixture
def loss_conformance(request: pytest.FixtureRequest) -> Callable[..., Iterator[Step]]:
    """Yields steps to train with the user's own trainer, and fails the test if it is wrong.

    ``mode`` is `sample_mean`, `prompt_mean`, `token_mean`, or `constant` with its ``divisor``.
    ``dp`` and ``micro_batches`` are numbers of data-parallel ranks, and of micro-batches on each,
    to try. ``packed`` says that micro-batches are packed rows; ``cases`` are names in the corpus,
    and ``time_limit`` the seconds that a rank may wait for another. ``advantages`` is the estimator
    of a trainer that computes advantages from rewards itself.
    """
    from conformance.own_trainer.check import OwnTrainerCheck
    from conformance.own_trainer.jobs import TELLING, asked

    def steps(
        *,
        mode: str,
        divisor: float | None = None,
        dp: int | Sequence[int] = 1,
        micro_batches: int | Sequence[int] = (1, 2, 4),
        packed: bool = False,
        cases: Sequence[str] = TELLING,
        time_limit: float = 60.0,
        advantages: str | None = None,
    ) -> Iterator[Step]:
        what = asked(mode, divisor, dp, micro_batches, packed, cases, advantages)
        check = OwnTrainerCheck(what, request.config.rootpath, time_limit)
        request.node.stash.setdefault(CHECKS, []).append(check)
        return _steps_of(check)

    return steps


def _steps_of(check: OwnTrainerCheck) -> Iterator[Step]:
    __tracebackhide__ = True
    from conformance.findings.errors import WrongUseError
    from conformance.own_trainer.outcome import WrongLossError

    try:
        yield from check.steps()
    except (WrongLossError, WrongUseError) as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End the processes that a check has forked, if a test leaves its loop early."""
    if loss_conformance.__name__ not in pyfuncitem.fixturenames:
        return (yield)
    from conformance.own_trainer.outcome import LEFT_EARLY, WrongLossError

    error: BaseException | None = None
    result = None
    try:
        result = yield
    except BaseException as raised:
        error = raised
    for check in pyfuncitem.stash.get(CHECKS, ()):
        shown = check.leave(error)
        if isinstance(shown, WrongLossError):
            raise pytest.fail.Exception(str(shown), pytrace=False) from None
        if shown is not None and shown is not error:
            raise shown from error
        if error is None and check.is_unfinished:
            pytest.fail(LEFT_EARLY, pytrace=False)
    if error is not None:
        raise error
    return result
