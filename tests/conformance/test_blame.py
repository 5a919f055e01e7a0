"""Whose failure an exception is."""

from collections.abc import Callable, Iterator

import pytest

from conformance.findings.verdict import Verdict
from conformance.ranks.blame import blame
from tests.drifting.adapter import CRASHES, OURS, REFUSALS, DriftingAdapter


def _cases() -> Iterator[object]:
    for verdict, failures in (
        (Verdict.NOT_DRIVEN, OURS),
        (Verdict.REFUSED, REFUSALS),
        (Verdict.CRASHED, CRASHES),
    ):
        for failure, words in failures.items():
            yield pytest.param(failure, verdict, words, id=failure.__name__)


@pytest.mark.parametrize(("failure", "verdict", "words"), [*_cases()])
def test_an_exception_has_the_verdict_of_the_one_at_fault_in_a_line(
    failure: Callable[[], object], verdict: Verdict, words: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each raises another
        failure()
    raised = blame(caught.value, DriftingAdapter(), None)

    assert raised.verdict is verdict
    assert f"{raised.words}, at {raised.place}" == words
