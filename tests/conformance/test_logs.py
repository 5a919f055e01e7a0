"""Log entries of micro-batches, and frameworks that do not look at them."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from adapters.contract import Adapter
from adapters.native.adapter import NativeAdapter
from conformance.corpus.configurations import LOG_CASES, LOG_ENTRIES, LogCase
from conformance.findings.verdict import Verdict
from conformance.judging.startup import judge_log
from conformance.ranks import log_process
from conformance.ranks.hardware import ON_CPU
from conformance.ranks.log_process import LogOutcome, LogRequest, Logs
from tests import broken, command
from tests.broken import Chattering
from tests.faulty import FailingToLog

BY_NAME = {log_case.name: log_case for log_case in LOG_CASES}


def outcomes_of(adapter: Adapter) -> Mapping[str, tuple[LogOutcome, LogOutcome]]:
    """The outcomes of each log, with asserts and without."""
    request = LogRequest(adapter=adapter, source=None, hardware=ON_CPU, cases=LOG_ENTRIES)
    with Logs(request) as logs:
        return {name: logs.of(name) for name in BY_NAME}


LOGGED = LogOutcome(kind="logged", log={"loss": 1.5, "kl": 3.0})
RAISED = LogOutcome(kind="raised", log={}, message="ValueError: keys differ")


def test_native_logs_what_is_well_formed_and_raises_at_the_rest() -> None:
    outcomes = outcomes_of(NativeAdapter())
    verdicts = {
        name: judge_log(log_case, *outcomes[name]).verdict for name, log_case in BY_NAME.items()
    }

    assert outcomes["well_formed"][0].log == {"loss": 4 / 6, "kl": 1.0}
    assert outcomes["well_formed_normalizers"][0].log == {"loss": 4 / 6, "kl": 0.6}
    assert verdicts == {
        name: Verdict.CONFORMS if log_case.is_well_formed else Verdict.REFUSED
        for name, log_case in BY_NAME.items()
    }


@pytest.mark.parametrize("log_case", LOG_CASES, ids=lambda log_case: log_case.name)
def test_well_formed_entries_are_logged_and_others_raise(log_case: LogCase) -> None:
    outcome = RAISED if log_case.is_well_formed else LOGGED
    wrong = judge_log(log_case, outcome, outcome)

    assert wrong.verdict is Verdict.MISMATCH
    assert log_case.says in wrong.diagnosis.explanation


def test_what_is_logged_all_the_same_is_told() -> None:
    diagnosis = judge_log(BY_NAME["key_order"], LOGGED, LOGGED).diagnosis

    assert diagnosis.name == "accepted"
    assert diagnosis.explanation.endswith("as loss = 1.5, kl = 3")


def test_what_an_assert_alone_refuses_is_told_once() -> None:
    diagnosis = judge_log(BY_NAME["key_order"], RAISED, LOGGED).diagnosis

    assert diagnosis.name == "refused_by_an_assert"
    assert diagnosis.explanation.endswith("under python -O they are logged, as loss = 1.5, kl = 3")


def test_what_a_framework_prints_is_no_answer() -> None:
    assert outcomes_of(Chattering())["well_formed"][0].kind == "logged"


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (broken.Unloadable(), "exited with status 1\n.*No module named 'flash_attn'"),
        (FailingToLog(broken.Vanishing()), "exited with status 7\n.*last words of tests/broken.py"),
        (FailingToLog(broken.Leaving()), "exited with status 0$"),
        (FailingToLog(broken.Killed()), "was killed by SIGKILL$"),
    ],
    ids=["unloadable", "vanishing", "leaving", "killed"],
)
def test_process_that_dies_is_a_crash_of_every_row(adapter: Adapter, words: str) -> None:
    start = time.monotonic()
    outcomes = outcomes_of(adapter)
    print(f"{words}: {time.monotonic() - start:.1f} s")

    assert set(outcomes) == set(BY_NAME)
    assert {outcome.kind for outcome, _ in outcomes.values()} == {"crashed"}
    message = outcomes["key_order"][0].message
    assert re.fullmatch(f"(?s)the process that makes logs {words}", message)


def test_process_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_process, "LIMIT", 3.0)
    outcomes = outcomes_of(FailingToLog(broken.Hanging()))

    assert {outcome.message for outcome, _ in outcomes.values()} == {
        "hang: the process that makes logs did not end in 3 s"
    }


def test_framework_that_dies_at_its_log_is_a_finding(tmp_path: Path) -> None:
    cases = ("--modes=token_mean", "-k", "well_formed_normalizers or weights and one_token")
    result = command.run(tmp_path, "failingtolog", *cases, "--layout=dp1-cp1-mb1-bshd")

    assert result.status == pytest.ExitCode.TESTS_FAILED
    assert result.report.complete
    assert {f.check: f.verdict for f in result.report.findings} == {
        "logging": "crashed",
        "weights": "conforms",
    }
