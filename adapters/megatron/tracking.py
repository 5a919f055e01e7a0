"""What slime and miles log of their training steps, where they hand it to their trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import Depth

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from adapters.contract import Job

TRACKERS = ("logging_utils", "tracking", "tracking_utils")
"""What the modules that log call the one that they log with, by version."""

POLICY_LOSS = "train/pg_loss"


class Log:
    """Takes the policy losses that are logged on this rank, in the place of the trackers."""

    def __init__(self) -> None:
        self._losses: list[float] = []

    def listen(self, module: ModuleType) -> None:
        """Stand where ``module`` logs to."""
        for name in TRACKERS:
            if hasattr(module, name):
                getattr(module, name).log = self._take

    def start(self) -> None:
        """Forget what was logged before, by a job that may have ended early."""
        self._losses.clear()

    def policy_losses(self, job: Job) -> tuple[float | None, ...]:
        """Of each step of a job; None for each on a rank that logs nothing."""
        if job.depth is not Depth.STEP:
            return ()
        return tuple(self._losses) or (None,) * len(job.steps)

    def _take(self, args: Any, metrics: Mapping[str, Any], **options: Any) -> None:
        if POLICY_LOSS in metrics:
            self._losses.append(float(metrics[POLICY_LOSS]))


LOG = Log()
