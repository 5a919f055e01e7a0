"""How far a run has come is said on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from conformance.findings.verdict import Verdict
from conformance.plugin.progress import Progress
from tests import command
from tests.conformance.test_journal import finding

if TYPE_CHECKING:
    from pathlib import Path

CHOSEN = ("--checks=weights", "--layout=dp1-cp1-mb1-bshd", "-k", "uneven_lengths")


def test_line_counts_what_is_wrong_and_tells_the_time_left_at_the_pace_so_far() -> None:
    times = iter([100.0, 101.0, 110.0])
    progress = Progress(total=62, clock=lambda: next(times))

    lines = [
        progress.line(finding("a")),
        progress.line(finding("b", Verdict.MISMATCH)),
        progress.line(finding("c", Verdict.CRASHED)),
    ]

    assert lines == [
        "  2% 1 of 62; dp1-cp1-mb1-bshd",
        "  3% 2 of 62, 1 MISMATCH, 0:01:00 left; dp1-cp1-mb1-bshd",
        "  5% 3 of 62, 1 MISMATCH, 1 CRASHED, 0:04:55 left; dp1-cp1-mb1-bshd",
    ]


def test_terminal_has_a_line_in_the_place_of_dots(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--adapter=native", *CHOSEN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.fspath(command.ROOT), "COLUMNS": "80", "TERM": "xterm"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = _all_of(ours)

    assert process.wait(timeout=60) == 0, shown
    assert re.search(r"\r100% 4 of 4, 0:00:00 left; dp1-cp1-mb1-bshd", shown)
    assert "...." not in shown


def _all_of(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # how a terminal ends once nobody writes to it
        pass
    return b"".join(parts).decode()


def test_pipe_has_none(tmp_path: Path) -> None:
    result = command.run(tmp_path, "native", *CHOSEN)

    assert "...." in result.output
    assert " left" not in result.output
