"""The pool on adapters that fail in every way a framework can."""

import time
from pathlib import Path

import pytest
import torch

from adapters.contract import Adapter, LogEntry, Rank
from adapters.native.adapter import NativeAdapter
from conformance.findings.errors import StartError
from conformance.findings.sanitize import numberless, sanitized_traceback
from conformance.findings.verdict import Verdict
from conformance.ranks import time_limits
from conformance.ranks.hardware import Device, Hardware
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from conformance.ranks.preload import load_once
from conformance.ranks.recording.stacks import told, waiting
from reference.aggregation import Mode
from tests import broken
from tests.conformance.ranks import ACTIVE, MASKED, assert_matches, is_alive, job


def test_serves_worlds_of_every_size_in_any_order_from_the_same_processes() -> None:
    with RankPool(NativeAdapter(), None, size=4) as pool:
        before = pool.pids()
        outcomes = [pool.run(job(dp=dp)) for dp in (4, 1, 2, 2, 4)]

        assert [len(o.observations) for o in outcomes if isinstance(o, Ran)] == [4, 1, 2, 2, 4]
        assert pool.pids() == before
    assert not any(is_alive(pid) for pid in before)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (broken.Raising(), "rank 1 raised\n.*RuntimeError: no kernel image"),
        (broken.Exiting(), "rank 1 raised\n.*SystemExit: giving up"),
        (broken.Interrupting(), "rank 1 raised\n.*KeyboardInterrupt"),
        (broken.Leaving(), "rank 1 exited with status 0"),
        (
            broken.Misshapen(),
            "^mismatched collectives: "
            r"ranks 0, 1 wait in all_reduce at tests/broken.py:\d+ \(observe\)",
        ),
        (broken.Vanishing(), "with status 7\n(warning\n){4} last words of tests/broken.py$"),
        (broken.Killed(), "rank 1 was killed by SIGKILL"),
        (broken.Segfaulting(), r'SIGSEGV\n(.*\n)?  File "tests/broken.py", line \d+ in fail'),
        (broken.DecliningAlone(), "not on this rank\n.one rank declined"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failing_rank_is_named_with_its_cause_and_the_pool_goes_on(
    adapter: Adapter, message: str
) -> None:
    with RankPool(adapter, None, size=2, time_limit=20) as pool:
        pool.pids()  # loading torch takes long on a busy machine, so it is not measured
        start = time.monotonic()
        outcome = pool.run(job(MASKED))
        elapsed = time.monotonic() - start
        print(f"{type(adapter).__name__}: {elapsed:.1f} s")

        assert isinstance(outcome, Crashed)
        assert_matches(message, outcome.message)
        assert elapsed < 15, "the others' wait was not cut short"
        assert isinstance(pool.run(job(ACTIVE)), Ran)


def test_traceback_names_files_from_where_they_are_imported() -> None:
    with RankPool(broken.Raising(), None, size=2) as pool:
        outcome = pool.run(job(MASKED))

    assert isinstance(outcome, Crashed)
    first = outcome.message.splitlines()[3]
    assert first.startswith('  File "tests/broken.py", line '), "it begins where ours ends"
    assert 'File "/' not in outcome.message


def test_of_several_ranks_that_raise_the_lowest_is_named_whichever_was_first() -> None:
    with RankPool(broken.RaisingEverywhere(), None, size=3) as pool:
        outcome = pool.run(job(dp=3))

    assert isinstance(outcome, Crashed)
    assert_matches("rank 0 raised\n.*RuntimeError: no kernel image on rank 0", outcome.message)


def test_last_words_of_a_rank_are_of_the_job_it_died_in() -> None:
    with RankPool(broken.Talkative(), None, size=2) as pool:
        outcomes = [pool.run(job(step)) for step in (MASKED, MASKED, ACTIVE, MASKED)]

    words = "rank 1 exited with status 7\nactive tokens: [0, 2]"
    assert [outcomes[0], outcomes[1], outcomes[3]] == [Crashed(words)] * 3
    assert isinstance(outcomes[2], Ran)


def test_frames_of_ours_are_not_numbered() -> None:
    entries = (LogEntry(keys=("loss",), values=(1.0,)), LogEntry(keys=("kl",), values=(1.0,)))
    with pytest.raises(ValueError, match="keys") as caught:
        NativeAdapter().aggregate(entries, Rank(index=0, world_size=1))

    message = sanitized_traceback(caught.value, None)
    assert 'File "adapters/native/adapter.py", in aggregate\n' in message
    assert message.count(", line ") == 1, "that of this test"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (
            broken.Hanging(),
            r"hang: .*; rank 1 is at tests/broken.py:\d+ \(fail\)",
        ),
        (
            broken.HangingWithGroups(),
            r"hang: .*; rank 1 is at tests/broken.py:\d+ \(fail\)",
        ),
        (broken.Deadlocked(), r"hang: .*rank 1 waits in barrier at tests/broken.py:\d+ \(fail\)"),
        (
            broken.Outnumbered(),
            r"hang: .*rank 0 waits in barrier at tests/broken.py:\d+ \(observe\)",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rank_that_hangs_is_given_up_after_the_time_limit(adapter: Adapter, message: str) -> None:
    with RankPool(adapter, None, size=2, time_limit=3) as pool:
        start = time.monotonic()
        outcome = pool.run(job(MASKED))
        print(f"{type(adapter).__name__}: {time.monotonic() - start:.1f} s")

        assert isinstance(outcome, Crashed)
        assert_matches(message, outcome.message)
        assert isinstance(pool.run(job(ACTIVE)), Ran)


@pytest.mark.processes
@pytest.mark.parametrize(
    "adapter", [broken.AtWork(), broken.AtWorkElsewhere()], ids=lambda value: type(value).__name__
)
def test_rank_that_is_at_work_when_the_time_is_over_does_not_hang(adapter: Adapter) -> None:
    with RankPool(adapter, None, size=2, time_limit=3) as pool:
        outcome = pool.run(job(MASKED))

        assert isinstance(outcome, Crashed)
        assert outcome.verdict is Verdict.NOT_DRIVEN, "the framework may be slow"
        words = r"^not done within --time-limit: .*rank 1 is at tests/broken.py:\d+ \(fail\)"
        assert_matches(words, outcome.message)
        assert isinstance(pool.run(job(ACTIVE)), Ran)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.PROMPT_MEAN, Declined("unsupported", "no prompt_mean")),
        (Mode.CONSTANT, Declined("refused", "ValueError: constant is out of fashion")),
    ],
)
def test_what_all_ranks_decline_is_no_failure(mode: Mode, expected: Declined) -> None:
    with RankPool(broken.Declining(), None, size=2) as pool:
        before = pool.pids()

        assert pool.run(job(mode=mode)) == expected
        assert isinstance(pool.run(job()), Ran)
        assert pool.pids() == before


def test_framework_that_cannot_be_imported_is_said_so() -> None:
    with (
        RankPool(broken.Unloadable(), None, size=2) as pool,
        pytest.raises(StartError, match=r"(?s)native cannot be loaded: .*No module named 'flash_"),
    ):
        pool.run(job())


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU here")
def test_rank_on_a_machine_without_a_gpu_says_so() -> None:
    cuda = Hardware(device=Device.CUDA)
    with (
        RankPool(NativeAdapter(), None, size=1, hardware=cuda) as pool,
        pytest.raises(StartError, match="--device=cuda needs a GPU and torch finds none"),
    ):
        pool.run(job(dp=1))


def test_a_framework_that_was_loaded_half_fails_as_it_did_at_first() -> None:
    for _ in ("the fork server", "a rank that was forked from it"):
        with pytest.raises(ImportError, match="flash_attn"):
            load_once(broken.HalfLoaded(), None)


def test_a_collective_in_the_thread_of_a_backward_pass_has_torchs_line() -> None:
    nn = Path(torch.__file__).parent / "distributed" / "nn" / "functional.py"
    c10d = nn.parents[1] / "distributed_c10d.py"
    stack = f"""Current thread 0x01 (most recent call first):
  File "{c10d}", line 3252 in all_reduce
  File "{nn}", line 532 in forward
  File "{nn}", line 538 in backward
"""

    state = str(waiting(stack, NativeAdapter(), None))
    assert state == "waits in all_reduce at torch/distributed/nn/functional.py:538 (backward)"


def test_a_rank_that_sleeps_and_waits_in_no_collective_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that sleeps may wait for a disk or a GPU."""
    monkeypatch.setattr(time_limits, "SECONDS_OF_QUIET", 0.1)
    with RankPool(broken.Slow(), None, size=2) as ranks:
        assert isinstance(ranks.run(job(ACTIVE)), Ran)


@pytest.mark.processes
def test_ranks_that_wait_in_collectives_are_given_up_before_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_limits, "SECONDS_OF_QUIET", 0.5)
    with RankPool(broken.Deadlocked(), None, size=2, time_limit=100_000) as ranks:
        outcome = ranks.run(job(MASKED))

        assert isinstance(outcome, Crashed)
        assert_matches("hang: .*rank 1 waits in barrier", outcome.message)


def test_a_hang_is_told_alike_whichever_and_however_many_ranks_do_what() -> None:
    waits, leads, done = (
        "waits in all_gather at b.py:9 (f)",
        "is at a.py:7 (g)",
        "has ended its step",
    )
    one, several = (
        told({0: leads, 1: waits, 2: done}),
        told({0: done, 1: leads, 2: waits, 3: waits}),
    )

    assert one == f"rank 1 {waits}; rank 2 {done}; rank 0 {leads}"
    assert numberless(one) == numberless(several)
