"""Has a framework make logs, in a forked process or in one of ``python -O -m`` this module.

Its folder has the request, for the latter, what came of it, and what the framework printed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from adapters.contract import Rank, Unsupported
from conformance.findings.sanitize import sanitize
from conformance.ranks import preload
from conformance.ranks.log_process import LogOutcome
from conformance.ranks.processes import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import LogEntry
    from conformance.ranks.log_process import LogRequest


def become_optimized(request: LogRequest, folder: Path) -> None:
    """Answer in the place of this process, in an interpreter that removes asserts."""
    _print_to(folder)
    (folder / "request").write_bytes(pickle.dumps(request))
    command = [sys.executable, "-O", "-m", __name__, str(folder)]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def answer(request: LogRequest, folder: Path) -> None:
    """Write what comes of a request into its folder."""
    die_with_parent(signal.SIGKILL)
    _print_to(folder)
    preload.hide_gpus()
    preload.load_once(request.adapter, request.source)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    outcomes = {name: _outcome(request, entries) for name, entries in request.cases.items()}
    (folder / "answer").write_bytes(pickle.dumps(outcomes))


def _print_to(folder: Path) -> None:
    with (folder / "errors").open("ab") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)


def _outcome(request: LogRequest, entries: Sequence[LogEntry]) -> LogOutcome:
    source = request.source
    try:
        log = request.adapter.aggregate(entries, Rank(index=0, world_size=1))
    except Unsupported as reason:
        return LogOutcome(kind="unsupported", log={}, message=sanitize(str(reason), source))
    except Exception as error:
        message = sanitize(f"{type(error).__name__}: {error}", source)
        return LogOutcome(kind="raised", log={}, message=message)
    named = {sanitize(key, source): float(value) for key, value in log.items()}
    return LogOutcome(kind="logged", log=named)


if __name__ == "__main__":
    asked_in = Path(sys.argv[1])
    answer(pickle.loads((asked_in / "request").read_bytes()), asked_in)
