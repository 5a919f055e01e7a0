"""A process that has a framework make logs: ``python [-O] -m conformance.ranks.log_child``.

It reads an adapter, a source and cases from its standard input, and writes what came of them.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from adapters.contract import Rank, Unsupported
from conformance.findings.sanitize import sanitize
from conformance.ranks import preload
from conformance.ranks.log_process import LogOutcome
from conformance.ranks.processes import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adapters.contract import Adapter, LogEntry


def main() -> None:
    """Answer one request."""
    die_with_parent(signal.SIGKILL)
    answer = os.dup(1)
    os.dup2(2, 1)  # what a framework prints is no answer
    adapter, source, cases = pickle.load(sys.stdin.buffer)
    preload.hide_gpus()
    preload.load_once(adapter, source)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    rank = Rank(index=0, world_size=1)
    outcomes = {name: _outcome(adapter, source, entries, rank) for name, entries in cases.items()}
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(outcomes, stream)


def _outcome(
    adapter: Adapter, source: Path | None, entries: Sequence[LogEntry], rank: Rank
) -> LogOutcome:
    try:
        log = adapter.aggregate(entries, rank)
    except Unsupported as reason:
        return LogOutcome(kind="unsupported", log={}, message=sanitize(str(reason), source))
    except Exception as error:
        message = sanitize(f"{type(error).__name__}: {error}", source)
        return LogOutcome(kind="raised", log={}, message=message)
    named = {sanitize(key, source): float(value) for key, value in log.items()}
    return LogOutcome(kind="logged", log=named)


if __name__ == "__main__":
    main()
