"""The command line, as a user types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import cli
from tests import command


def adapters(*arguments: str) -> dict[str, str]:
    """What ``rl-loss-conformance adapters`` says of each adapter and engine."""
    script = Path(sys.executable).with_name("rl-loss-conformance")
    result = subprocess.run(
        [script, "adapters", *arguments], capture_output=True, text=True, timeout=180, check=True
    )
    blocks = [block for block in result.stdout.split("\n\n") if block.strip()]
    return {re.sub(", default", "", block.splitlines()[0]): block for block in blocks}


def test_adapters_shows_what_can_be_checked_here_and_what_is_missing() -> None:
    blocks = adapters()

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
def test_adapters_takes_sources_by_name() -> None:
    repository = Path(os.environ[command.SOURCES]) / "miles"
    block = adapters(f"--source=miles={repository}@refs/pull/1328/head")["miles (engine megatron)"]

    assert re.search(r"source +git refs/pull/1328/head [0-9a-f]{40}", block)
    assert re.search(r"modes +sample_mean, token_mean, constant", block)
    assert re.search(r"stood in for .*megatron\.training", block)


def test_source_of_an_adapter_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["adapters", "--source=verl=/tmp"]) == cli.USAGE_ERROR
    assert "source '/tmp' is for adapter 'verl'" in capsys.readouterr().err


def test_source_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["adapters", "--source=/tmp"])
    assert "'/tmp' is not of the form NAME=PATH" in capsys.readouterr().err
