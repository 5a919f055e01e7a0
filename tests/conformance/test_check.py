"""Verdicts on a framework's behaviour: what it may decline or crash on, and whose rule it is."""

import pytest

from adapters.contract import BatchProperty, Depth, Layout
from conformance.corpus.configurations import CONFIG_CASES
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement
from conformance.plan.checks import CheckSpec
from conformance.plan.matrix import StartupCell
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed
from conformance.runs.check import make
from reference.aggregation import Mode
from tests.conformance.cells import answered, cell

DECLINED = Declined("refused", "AssertionError: 8 samples cannot be dealt to 3 ranks")
CRASHED = Crashed("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("mode", Mode)
def test_uneven_cut_may_be_declined_in_words_in_every_mode(mode: Mode) -> None:
    uneven = cell("two_steps", Layout(dp=3), mode)

    assert make(uneven, answered(lambda _: DECLINED)).verdict is Verdict.REFUSED


def test_ordinary_step_may_not_be_declined() -> None:
    even = cell("two_steps", Layout(dp=2))

    assert make(even, answered(lambda _: DECLINED)).verdict is Verdict.DECLINED


def test_what_a_framework_allows_in_its_own_documents_is_no_finding_against_it() -> None:
    case = next(case for case in CONFIG_CASES if case.name == "divisor_of_another_mode")
    startup = StartupCell(
        aggregation=case.given.aggregation(Mode.TOKEN_MEAN),
        case=case.given,
        layout=Layout(micro_batches=2),
        depth=Depth.STEP,
        spec=CheckSpec(check=case.check, name=case.name),
        config_case=case,
    )
    finding = make(startup, answered(lambda _: DECLINED, permits={case.rule: "its scripts"}))

    assert finding.verdict is Verdict.UNSUPPORTED
    assert finding.message == "a divisor with a mode that does not use one: allowed by its scripts"


NEVER_MADE = {BatchProperty.EMPTY_SAMPLE: "its worker"}


def crashing(case: str, never_made: dict[BatchProperty, str]) -> Judgement:
    return make(cell(case), answered(lambda _: CRASHED, never_made=never_made))


def test_crash_with_a_batch_that_is_never_made_is_advice() -> None:
    advised = crashing("fully_masked_sample", NEVER_MADE)

    assert advised.verdict is Verdict.ADVICE
    assert advised.diagnosis.name == "never_made"
    assert advised.diagnosis.explanation == (
        "a batch with a sample without active tokens crashes, which its worker never makes, and"
        " code of a user's in its place may: ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize("case", ["uneven_lengths", "rejected_sample"])
def test_crash_with_another_batch_is_one(case: str) -> None:
    """Only the framework's own rejection may leave a sample without active tokens here."""
    assert crashing(case, NEVER_MADE).verdict is Verdict.CRASHED


def test_crash_is_one_where_nothing_is_said_of_batches() -> None:
    assert crashing("fully_masked_sample", {}).verdict is Verdict.CRASHED
