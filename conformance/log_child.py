"""A process that has a framework make logs: ``python [-O] -m conformance.log_child``.

It reads an adapter, a source and the rows from its standard input, and writes what came of them.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from adapters.contract import Rank, Unsupported
from conformance import preload
from conformance.logs import LogOutcome
from conformance.processes import die_with_parent
from conformance.words import words

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Adapter
    from conformance.logs import LogRow


def main() -> None:
    """Answer one request."""
    die_with_parent(signal.SIGKILL)
    answer = os.dup(1)
    os.dup2(2, 1)  # what a framework prints is no answer
    adapter, source, rows = pickle.load(sys.stdin.buffer)
    preload.hide_gpus()
    preload.load_once(adapter, source)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    rank = Rank(index=0, world_size=1)
    outcomes = {row.name: _outcome(adapter, source, row, rank) for row in rows}
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(outcomes, stream)


def _outcome(adapter: Adapter, source: Path | None, row: LogRow, rank: Rank) -> LogOutcome:
    try:
        log = adapter.aggregate(row.entries, rank)
    except Unsupported as reason:
        return LogOutcome(kind="unsupported", log={}, message=words(str(reason), source))
    except Exception as error:
        message = words(f"{type(error).__name__}: {error}", source)
        return LogOutcome(kind="raised", log={}, message=message)
    named = {words(key, source): float(value) for key, value in log.items()}
    return LogOutcome(kind="logged", log=named)


if __name__ == "__main__":
    main()
