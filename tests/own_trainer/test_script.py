"""A script without pytest prints what a failing test would, also under torchrun."""

import os
import subprocess
import sys

import pytest

from tests import command

SCRIPT = "tests/own_trainer/script.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

pytestmark = pytest.mark.processes


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=command.ROOT,
        env={**os.environ, "PYTHONPATH": str(command.ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("launcher", "trainer", "words"),
    [
        ((), "Trainer", "the trainer is right: all of 2 findings conform to token_mean"),
        pytest.param(
            (), "MeanOfMeans", "[denominators_per_micro_batch]", marks=pytest.mark.thorough
        ),
        (TORCHRUN, "LocalCount", "[denominators_per_rank]"),
    ],
)
def test_a_script_prints_what_is_wrong(launcher, trainer, words):
    result = run(*launcher, SCRIPT, trainer)

    assert words in result.stdout, result.stderr
    assert result.returncode == (trainer != "Trainer")
