"""The progress of a run is shown on a terminal, and nowhere else."""

import io
import itertools
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from conformance.findings.verdict import Verdict
from conformance.plugin.controller import ProgressLine
from tests import command
from tests.findings import finding

CHOSEN = ("--checks=weights", "--layout=dp1-cp1-mb1-bshd", "-k", "uneven_lengths")


def test_line_counts_what_is_wrong_and_tells_the_time_left() -> None:
    shown = io.StringIO()
    clock = itertools.count(100.0, 10.0)
    line = ProgressLine(
        Console(file=shown, force_terminal=True, width=80, get_time=lambda: next(clock)), 62
    )

    for verdict in (Verdict.CONFORMS, Verdict.MISMATCH, Verdict.CRASHED):
        line.show(finding("a", verdict))
    line.pytest_sessionfinish()

    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
    assert "  2% 1 of 62 -:--:-- left; dp1-cp1-mb1-bshd\r" in plain
    assert re.search(r"  3% 2 of 62, 1 MISMATCH \d+:\d\d:\d\d left; dp1-cp1-mb1-bshd\r", plain)
    assert plain.count("\n") == 1
    assert re.search(r"  5% 3 of 62, 1 MISMATCH, 1 CRASHED \S+ left; dp1-cp1-mb1-bshd\n", plain)


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
    assert re.search(r"100% 4 of 4 .*0:00:00.* left; dp1-cp1-mb1-bshd", shown)
    assert "...." not in shown


def _all_of(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # a terminal ends like this once its writer is gone
        pass
    return b"".join(parts).decode()


def test_pipe_has_none(tmp_path: Path) -> None:
    result = command.run(tmp_path, "native", *CHOSEN)

    assert "...." in result.output
    assert " left" not in result.output
