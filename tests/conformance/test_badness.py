"""A factor r is as bad as 1 / r wherever errors are shown or sorted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract import Description, Observation, PendingReduction
from adapters.contract.objective import Metric
from conformance.comparing.diff import Change, ChangeKind
from conformance.comparing.gate import Comparing, Outcome
from conformance.explain.causes import causes
from conformance.findings.agreement import agreement
from conformance.findings.badness import badness, factor_text, off_by
from conformance.findings.finding import Finding
from conformance.findings.report import Request
from conformance.findings.verdict import Verdict
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Judgement, Trained, judge_weights, largest_error
from reference.rounding import weight_bound
from reference.weights import token_weights
from tests.conformance.weighed import found, wrong
from tests.findings import finding, mismatch, report
from tests.jobs import job_of, step_of

STEP = step_of([1, 1, 0, 1], [1, 1, 0, 1], groups=[0, 1])

JOB = job_of(STEP)

FACTORS = st.floats(1.01, 1e5)

RIGHT = token_weights(STEP, JOB.aggregation)


def weighed(factor: float) -> Judgement:
    weights = (RIGHT * factor,)
    return judge_weights(
        Trained(
            JOB,
            [Observation(token_weights=weights, pending_reduction=PendingReduction.REPLICATED)],
            Description(),
        ),
    )


def logged(factor: float) -> Judgement:
    """The judgement of a logged policy loss, off by a factor; its advantages have both signs."""
    right = _logged(0.0).logged
    return _logged(factor * right.expected)


def _logged(value: float) -> Judgement:
    observation = Observation(token_weights=(), reported={Metric.POLICY_LOSS: (value,)})
    judgement = judge_logged(Trained(JOB, [observation], Description()))
    assert judgement is not None
    return judgement


def off(factor: float) -> Finding:
    """A finding in which every weight is multiplied by a factor."""
    return wrong(
        largest_error(RIGHT * factor, RIGHT),
        agreement=agreement(RIGHT * factor, RIGHT),
        tolerance=weight_bound("float32"),
    )


def test_error_and_agreement_are_those_that_a_judge_finds() -> None:
    for factor in (1e-5, 0.99, 3.0):
        found, judged = off(factor), weighed(factor)
        assert found.error == judged.error
        assert found.agreement == judged.agreement
        assert found.tolerance == judged.tolerance


@pytest.mark.parametrize("judged", [weighed, logged])
@given(factor=FACTORS)
def test_a_factor_is_as_bad_as_its_reciprocal(
    judged: Callable[[float], Judgement], factor: float
) -> None:
    large, small = judged(factor), judged(1 / factor)

    assert large.verdict is small.verdict is Verdict.MISMATCH
    assert large.agreement == pytest.approx(small.agreement)
    assert Change(off(factor), off(1 / factor)).kind is ChangeKind.SAME


@given(one=FACTORS, more=st.floats(1.01, 10))
def test_a_larger_factor_is_worse_on_either_side(one: float, more: float) -> None:
    worse = off(one * more), off(1 / (one * more))
    for old in (off(one), off(1 / one)):
        for new in worse:
            assert Change(old, new).kind is ChangeKind.WORSE
            assert Change(new, old).kind is ChangeKind.BETTER
            assert badness(new) > badness(old)


def test_a_thousandth_is_worse_than_three_times_and_the_reverse_is_better(tmp_path: Path) -> None:
    """The relative errors, 2 for three times and 0.999 for a thousandth, say the opposite."""
    thrice, thousandth = off(3.0), off(0.001)

    assert Change(thrice, thousandth).kind is ChangeKind.WORSE
    assert Change(thousandth, thrice).kind is ChangeKind.BETTER
    for before, after, outcome in (
        (thrice, thousandth, Outcome.FAILS),
        (thousandth, thrice, Outcome.KNOWN),
    ):
        baseline = report(before)
        assert Comparing(tmp_path / "x", baseline, Request()).decision(after).outcome is outcome


def test_the_worst_comes_first_be_it_too_small_or_too_large() -> None:
    figures = {"twice": (1.0, 0.5), "thousandth": (0.999, 0.001), "lost": (1.0, 0.0)}
    findings = [
        mismatch(name, name).model_copy(update={"error": error, "agreement": agreement})
        for name, (error, agreement) in figures.items()
    ]
    odd = mismatch("nan", "not_finite").model_copy(update={"error": None})

    assert [cause.name for cause in causes([*findings, odd], [], {})] == [
        "not_finite",
        "lost",
        "thousandth",
        "twice",
    ]


@pytest.mark.parametrize(
    ("observed", "expected", "magnitude", "agrees"),
    [
        ([0.5, 0.5], [0.5, 0.5], None, 1),
        ([0.5, 0.1], [0.5, 0.5], None, 0.2),
        ([0.5, 0.0], [0.5, 0.5], None, 0),
        ([0.5, -0.5], [0.5, 0.5], None, 0),
        ([-0.5, -1.5], [-0.5, -0.5], None, 1 / 3),
        ([0.5, np.inf], [0.5, 0.5], None, None),
        ([0.5, 1e-30], [0.5, 0.0], None, 1 / 2),
        ([0.5, -2.0], [0.5, 0.0], None, 1 / 5),
        ([0.0, 3.0], [0.0, 0.0], None, 1 / 4),
        ([0.5], [0.25], [1.0], 1 / 1.25),
        ([0.125], [0.25], [1.0], 1 / 1.25),
        ([0.0], [0.25], [1.0], 0),
        ([-0.25], [0.25], [1.0], 0.75 / 1.25),
        ([-0.25], [0.25], [0.25 + 1e-17], 0),
        ([0.1], [0.0], [1.0], 1 / 1.1),
    ],
)
def test_agreement_is_that_of_what_is_most_off(
    observed: list[float],
    expected: list[float],
    magnitude: list[float] | None,
    agrees: float | None,
) -> None:
    given_magnitude = None if magnitude is None else np.array(magnitude)

    assert agreement(np.array(observed), np.array(expected), given_magnitude) == (
        None if agrees is None else pytest.approx(agrees)
    )


def test_of_what_is_lost_the_larger_error_is_worse() -> None:
    lost, lost_and_more = wrong(1.0, agreement=0.0), wrong(59.0, agreement=0.0)

    assert Change(lost, lost_and_more).kind is ChangeKind.WORSE
    assert Change(lost, lost).kind is ChangeKind.SAME
    assert Change(wrong(0.999, agreement=1e-3), lost).kind is ChangeKind.WORSE


def test_older_reports_are_compared_by_what_they_have() -> None:
    """Without an agreement, an error of 0.999 may mean nearly lost or nearly doubled weights."""
    older, newer = wrong(0.999), wrong(0.999, agreement=0.001)

    assert Change(older, newer).kind is ChangeKind.SAME
    assert Change(older, wrong(2.0, agreement=1 / 3)).kind is ChangeKind.WORSE
    assert Change(newer, older).kind is ChangeKind.SAME


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"error": 5.5, "agreement": 1 / 6.5}, "off by a factor of 6.5"),
        ({"error": 0.999, "agreement": 0.001}, "off by a factor of 1,000"),
        ({"error": 1.0, "agreement": 0.0}, "a value is lost (0) or has the wrong sign"),
        ({"error": 0.917}, "relative error 0.917"),
        ({"error": None}, ""),
    ],
)
def test_it_is_said_in_words(fields: dict[str, float | None], words: str) -> None:
    assert off_by(found(Verdict.MISMATCH, **fields)) == words


def test_advice_on_what_is_right_is_not_said_to_be_off() -> None:
    assert off_by(found(Verdict.ADVICE, error=1e-9)) == ""


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (1.0, "1"),
        (1.00001, "1.00001"),
        (1 / 0.9714, "1.0294"),
        (1.12, "1.12"),
        (2.0, "2"),
        (26.666, "26.7"),
        (450_123.0, "450,000"),
        (1.5e9, "1.5e+09"),
    ],
)
def test_a_factor_has_the_digits_that_tell_it_from_1(factor: float, text: str) -> None:
    assert factor_text(factor) == text


def test_what_conforms_says_nothing_of_it() -> None:
    assert weighed(1.0).agreement is None
    assert "agreement" not in finding("a").model_dump(exclude_none=True)
