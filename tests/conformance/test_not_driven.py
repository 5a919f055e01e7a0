"""A version that the adapter cannot drive is reported as not driven, and never as wrong."""

from pathlib import Path

import pytest

from adapters.contract import Adapter
from conformance.findings.verdict import Verdict
from conformance.plugin.controller import NOT_DRIVEN
from conformance.ranks.pool import Crashed, RankPool
from tests import command
from tests.conformance.ranks import ACTIVE, LIMIT, job
from tests.drifting.adapter import (
    DriftingAdapter,
    Refusing,
    RefusingAfterAMicroBatch,
    RefusingOnOneRank,
    RefusingTooLate,
)
from tests.tables import table

LACKING = table("drifting/failures.toml")["not_driven"]["reads_what_the_stub_lacks"]

ONE_RANK = "--layout=dp1-cp1-mb1-bshd"

FEW = (ONE_RANK, "--checks=weights", "-k", "one_token or uneven_lengths")


def test_what_the_adapter_lacks_is_one_line_and_a_status_of_its_own(tmp_path: Path) -> None:
    result = command.run(tmp_path, "driftingadapter", *FEW)

    assert result.status == NOT_DRIVEN
    assert {finding.verdict for finding in result.report.findings} == {Verdict.NOT_DRIVEN}
    assert result.report.causes == []
    assert f"not driven: {LACKING} (8)" in " ".join(result.output.split())
    assert "; the adapter drives drifting 1.0 to 1.2" in result.output
    assert "Traceback" not in result.output


def test_one_mode_that_is_not_driven_leaves_the_others_their_verdicts(tmp_path: Path) -> None:
    result = command.run(tmp_path, "driftinginonemode", *FEW)

    assert result.status == NOT_DRIVEN
    assert {finding.mode: finding.verdict for finding in result.report.findings} == {
        "sample_mean": Verdict.CONFORMS,
        "prompt_mean": Verdict.CONFORMS,
        "token_mean": Verdict.NOT_DRIVEN,
        "constant": Verdict.CONFORMS,
    }
    assert result.report.causes == []


def test_a_run_whose_steps_all_end_in_one_exception_gives_no_verdicts(tmp_path: Path) -> None:
    result = command.run(tmp_path, "crashing", *FEW)

    assert result.status == NOT_DRIVEN
    assert {finding.verdict for finding in result.report.findings} == {Verdict.NOT_DRIVEN}
    words = "FAILED: no verdicts, as nothing shows that this version is driven: RuntimeError: zero-"
    assert words in result.output


def test_a_single_step_that_crashes_is_a_crash_with_its_place(tmp_path: Path) -> None:
    result = command.run(
        tmp_path, "crashing", ONE_RANK, "--checks=weights", "-k", "token_mean/one_token"
    )

    [finding] = result.report.findings
    [cause] = result.report.causes
    assert result.status == pytest.ExitCode.TESTS_FAILED
    assert finding.verdict is Verdict.CRASHED
    assert finding.place == "tests/drifting/framework.py:77 (concatenate)"
    assert cause.statement == (
        "RuntimeError: zero-dimensional tensor (at position 0) cannot be concatenated, at"
        " tests/drifting/framework.py:77 (concatenate)"
    )


def test_a_deliberate_error_is_a_refusal_that_fails_nothing(tmp_path: Path) -> None:
    result = command.run(tmp_path, "refusing", *FEW)

    assert result.status == pytest.ExitCode.OK, result.output
    assert {finding.verdict for finding in result.report.findings} == {Verdict.REFUSED}
    assert "refused: ValueError: seq-mean is not supported" in result.output


@pytest.mark.parametrize(
    ("adapter", "verdict"),
    [
        (DriftingAdapter(), Verdict.NOT_DRIVEN),
        (Refusing(), Verdict.REFUSED),
        (RefusingOnOneRank(), Verdict.REFUSED),
        (RefusingTooLate(), Verdict.CRASHED),
        (RefusingAfterAMicroBatch(), Verdict.CRASHED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_is_one_unless_some_of_the_step_has_been_made(
    adapter: Adapter, verdict: Verdict
) -> None:
    with RankPool(adapter, None, size=2, time_limit=LIMIT) as pool:
        outcome = pool.run(job(ACTIVE))

    assert isinstance(outcome, Crashed)
    assert outcome.verdict is verdict
