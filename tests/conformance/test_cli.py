"""The command line, as a user types it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import cli
from conformance.corpus.cases import ALL_CASES
from tests import command


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What a command prints, line by line."""
    assert cli.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def adapters(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """What ``rl-loss-conformance adapters`` says of each adapter and engine."""
    command.warm_context()
    blocks = "\n".join(printed(capsys, "adapters", *arguments)).split("\n\n")
    return {re.sub(", default", "", block.splitlines()[0]): block for block in blocks}


@pytest.mark.processes
def test_adapters_shows_what_can_be_checked_here_and_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = adapters(capsys)

    assert re.search(r"source +installed 0\.3\.0", blocks["skyrl (engine fsdp)"])
    assert re.search(
        r"modes +sample_mean, prompt_mean, token_mean, constant", blocks["skyrl (engine fsdp)"]
    )
    assert re.search(r"depths +reducer, loss, step", blocks["skyrl (engine megatron)"])
    assert re.search(r"conventions +sample_unit: sample", blocks["native (engine torch)"])
    assert "skyrl (engine fsdp, default)" in blocks["skyrl (engine fsdp)"]
    for missing in ("miles (engine megatron)", "miles (engine fsdp)", "slime (engine megatron)"):
        assert re.search(r"problem +\w+ is on no package registry; give --source", blocks[missing])


@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
)
def test_adapters_takes_sources_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    repository = Path(os.environ[command.SOURCES]) / "miles"
    blocks = adapters(capsys, f"--source=miles={repository}@refs/pull/1328/head")
    block = blocks["miles (engine megatron)"]

    assert re.search(r"source +git refs/pull/1328/head [0-9a-f]{40}", block)
    assert re.search(r"modes +sample_mean, token_mean, constant", block)
    assert re.search(r"stub packages .*megatron\.training", block)


def test_source_of_an_adapter_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["adapters", "--source=nobody=/tmp"]) == cli.USAGE_ERROR
    assert "source '/tmp' is for adapter 'nobody'" in capsys.readouterr().err


def test_source_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["adapters", "--source=/tmp"])
    assert "'/tmp' is not of the form NAME=PATH" in capsys.readouterr().err


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


def test_case_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cases", "no_such_case"]) == cli.USAGE_ERROR
    error = capsys.readouterr().err
    assert "case 'no_such_case' is unknown; choose uneven_lengths, " in error
