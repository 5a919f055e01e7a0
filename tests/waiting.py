"""Waiting for processes of other sessions."""

import subprocess
import time


def processes_of_session(session: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-eo", "pid=,sess=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, of, state in rows if int(of) == session and state[0] != "Z"]


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
