"""The command line, as a user types it."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance import cli
from conformance.comparing.report_file import write
from conformance.corpus.cases import ALL_CASES
from tests import command
from tests.findings import HEADER, finding, report
from tests.pools import NEEDS_CLONES
from tests.tables import table
from tests.toys import checkout


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines that a command prints."""
    assert cli.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def adapters(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The block of ``rl-loss-conformance adapters`` on each adapter and engine."""
    command.warm_context()
    blocks = "\n".join(printed(capsys, "adapters", *arguments)).split("\n\n")
    return {re.sub(", default", "", block.splitlines()[0]): block for block in blocks}


@pytest.mark.processes
@pytest.mark.parametrize(
    "names", [("native", "skyrl", "miles", "slime"), pytest.param((), marks=pytest.mark.thorough)]
)
def test_adapters_shows_what_can_be_checked_here_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], names: Sequence[str]
) -> None:
    """The command lists the named adapters, or all adapters if none is named."""
    blocks = adapters(capsys, *names)

    assert re.search(r"source +installed 0\.3\.0", blocks["skyrl (engine fsdp)"])
    assert re.search(
        r"modes +sample_mean, prompt_mean, token_mean, constant", blocks["skyrl (engine fsdp)"]
    )
    assert re.search(r"depths +reducer, loss, step", blocks["skyrl (engine megatron)"])
    assert re.search(r"conventions +sample_unit: sample", blocks["native (engine torch)"])
    assert "skyrl (engine fsdp, default)" in blocks["skyrl (engine fsdp)"]
    for missing in ("miles (engine megatron)", "miles (engine fsdp)", "slime (engine megatron)"):
        assert re.search(r"problem +\w+ is on no package registry; give --source", blocks[missing])


@NEEDS_CLONES
def test_adapters_takes_sources_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    repository = Path(os.environ[command.SOURCES]) / "miles"
    blocks = adapters(capsys, f"--source=miles={repository}@refs/pull/1328/head")
    block = blocks["miles (engine megatron)"]

    assert re.search(r"source +git refs/pull/1328/head [0-9a-f]{40}", block)
    assert re.search(r"modes +sample_mean, token_mean, constant", block)
    assert re.search(r"stub packages .*megatron\.training", block)


def test_cases_are_a_table_with_what_each_catches_and_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    header, *rows = printed(capsys, "cases")

    assert header.split() == ["case", "samples", "prompts", "active", "tokens", "catches", "source"]
    assert [row.split()[0] for row in rows] == [case.name for case in ALL_CASES]
    for row, case in zip(rows, ALL_CASES, strict=True):
        assert f"  {case.catches}  " in row
        assert row.endswith(f"  {case.source}")
    [two_steps] = [row for row in rows if row.startswith("two_steps ")]
    assert two_steps.split()[:4] == ["two_steps", "8+8", "4+4", "35+51"]


def test_case_is_shown_with_its_samples_and_weights(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(printed(capsys, "cases", "worked_example", "two_steps"))
    worked, step, other = text.split("\n\n", 2)

    assert worked.startswith("worked_example\n  catches  a hard-coded divisor")
    assert re.search(r"\n  source   miles pull request 1328", worked)
    heading, header, row = step.splitlines()
    assert heading == "step 1 of 1: N = 1 samples, P = 1 prompts, M = 3 active tokens, L = 4"
    assert dict(zip(header.split(), row.split(), strict=True)) == {
        "sample": "0",
        "group": "0",
        "rollout": "0",
        "prompt": "1",
        "response": "3",
        "sample_mean": "1/3",
        "prompt_mean": "1/3",
        "token_mean": "1/3",
        "constant": "1/4",
        "mask": "111",
    }
    assert other.startswith("two_steps\n")
    assert "step 2 of 2: N = 8 samples" in other


def test_long_masks_are_shortened_and_huge_steps_shown_without_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "cases", "production_step")

    assert "  layouts  dp2-cp2-mb2-thd, dp4-cp1-mb2-thd" in lines
    assert "sample  group  rollout  prompt  response  mask" in lines
    assert any(line.endswith("  86·1 43·0 130·1") for line in lines)
    assert max(map(len, lines)) <= 100


def test_reader_that_stops_reading_is_no_error() -> None:
    script = Path(sys.executable).with_name("rl-loss-conformance")
    shown = subprocess.run(
        f"{script} cases | head -n 1", shell=True, capture_output=True, text=True, timeout=180
    )

    assert shown.stdout.startswith("case")
    assert not shown.stderr


@pytest.mark.parametrize(("given", "words"), table("conformance/refusals.toml")["command"].items())
def test_what_cannot_be_done_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], given: str, words: str
) -> None:
    try:
        status: object = cli.main(given.replace("ROOT", str(command.ROOT)).split())
    except SystemExit as end:  # argparse exits by itself
        status = end.code

    assert status == cli.USAGE_ERROR
    assert re.search(words, capsys.readouterr().err)


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"rl-loss-conformance {version('rl-loss-conformance')}\n"


def test_without_a_report_the_last_run_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show"]) == cli.USAGE_ERROR
    assert "no run has left a report in " in capsys.readouterr().err

    for age, adapter in enumerate(("newest", "oldest")):
        path = tmp_path / "reports" / "latest" / f"{adapter}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(report(finding("a"), header=HEADER.model_copy(update={"adapter": adapter})), path)
        os.utime(path, (1000 - age, 1000 - age))
    assert printed(capsys, "show")[0].startswith("newest ")


@pytest.mark.processes
def test_a_plan_may_be_that_of_one_version(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    toy = checkout(tmp_path / "slime")
    command.warm_context()
    arguments = ["plan", "--adapter=slime", "--max-ranks=1"]

    def jobs(*more: str) -> set[str]:
        return {line.split()[0] for line in printed(capsys, *arguments, *more)[2:]}

    assert jobs(f"--source={toy}") < jobs()


def test_interrupting_a_command_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    former = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("conformance.views.listing.table", interrupted)
    try:
        assert cli.main(["cases"]) == cli.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, former)
    assert not capsys.readouterr().err


class Full(io.StringIO):
    """An output on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_output_that_finds_no_room_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as redirected:
        redirected.setattr("conformance.views.listing.table", lambda: iter(["a case"]))
        redirected.setattr(sys, "stdout", Full())
        status = cli.main(["cases"])

    assert status == cli.USAGE_ERROR
    words = "the output cannot be written: No space left on device"
    assert capsys.readouterr().err == f"rl-loss-conformance: {words}\n"
