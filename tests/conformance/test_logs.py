"""What micro-batches hand on to be logged, and frameworks that do not look at it."""

from __future__ import annotations

import pytest

from adapters.native import NativeAdapter
from conformance import logs
from conformance.logs import LogOutcome, LogRow, judge_log
from conformance.report import Verdict
from tests.broken import Chattering, Unloadable

ROWS = {row.name: row for row in logs.ROWS}
LOGGED = LogOutcome(kind="logged", log={"loss": 1.5, "kl": 3.0})
RAISED = LogOutcome(kind="raised", log={}, message="ValueError: keys differ")


@pytest.mark.parametrize("optimized", [False, True])
def test_native_logs_what_is_well_formed_and_raises_at_the_rest(optimized: bool) -> None:
    outcomes = logs.outcomes(NativeAdapter(), None, optimized=optimized)
    verdicts = {name: judge_log(ROWS[name], outcome).verdict for name, outcome in outcomes.items()}

    assert outcomes["well_formed"].log == {"loss": 4 / 6, "kl": 1.0}
    assert outcomes["well_formed_normalizers"].log == {"loss": 4 / 6, "kl": 0.6}
    assert verdicts == {
        name: Verdict.CONFORMS if row.is_well_formed else Verdict.REFUSED
        for name, row in ROWS.items()
    }


@pytest.mark.parametrize("row", logs.ROWS, ids=lambda row: row.name)
def test_well_formed_entries_are_logged_and_others_raise(row: LogRow) -> None:
    wrong = judge_log(row, RAISED if row.is_well_formed else LOGGED)

    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis is not None
    assert row.says in wrong.diagnosis.explanation


def test_what_is_logged_all_the_same_is_told() -> None:
    diagnosis = judge_log(ROWS["key_order"], LOGGED).diagnosis

    assert diagnosis is not None
    assert diagnosis.name == "accepted"
    assert diagnosis.explanation.endswith("as loss = 1.5, kl = 3")


def test_what_a_framework_prints_is_no_answer() -> None:
    assert logs.outcomes(Chattering(), None, optimized=False)["well_formed"].kind == "logged"


def test_framework_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(logs.LogRunError, match="No module named 'flash_attn'"):
        logs.outcomes(Unloadable(), None, optimized=False)
