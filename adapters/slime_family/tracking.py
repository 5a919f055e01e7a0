"""What slime and miles log of their training steps, where they hand it to their trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adapters.contract import Depth, Unsupported
from adapters.contract.objective import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from adapters.contract import Job, LogEntry

TRACKERS = ("logging_utils", "tracking", "tracking_utils")
"""What the modules that log call the one that they log with, by version."""

KEYS = {
    "train/loss": Metric.LOSS,
    "train/value_loss": Metric.LOSS,
    "train/pg_loss": Metric.POLICY_LOSS,
    "train/pg_clipfrac": Metric.CLIP_FRACTION,
    "train/ppo_kl": Metric.POLICY_KL,
    "train/entropy_loss": Metric.ENTROPY,
    "train/kl_loss": Metric.KL,
    "train/rejected": Metric.REJECTED,
}
"""What is logged, by name; the last is ours, of the function that rejects."""


def as_dictionaries(entries: Sequence[LogEntry], *, with_normalizers: bool) -> list[dict[str, Any]]:
    """Entries as slime's and miles' micro-batches hand them on.

    Raises:
        Unsupported: an entry has normalizers, of which this version knows nothing.
    """
    if not with_normalizers and any(entry.normalizers is not None for entry in entries):
        raise Unsupported("no normalizers of their own for values that are logged")
    return [_as_dictionary(entry) for entry in entries]


def _as_dictionary(entry: LogEntry) -> dict[str, Any]:
    """Its values, with their count before them unless they have normalizers."""
    if entry.normalizers is None:
        return {"keys": [*entry.keys], "values": torch.tensor([entry.count, *entry.values])}
    return {
        "keys": [*entry.keys],
        "values": torch.tensor(entry.values),
        "normalizers": torch.tensor(entry.normalizers),
    }


class Log:
    """Takes the numbers that are logged on this rank, in the place of the trackers."""

    def __init__(self) -> None:
        self._steps: list[dict[Metric, float]] = []

    def listen(self, module: ModuleType) -> None:
        """Stand where ``module`` logs to."""
        for name in TRACKERS:
            if hasattr(module, name):
                getattr(module, name).log = self._take

    def start(self) -> None:
        """Forget what was logged before, by a job that may have ended early."""
        self._steps.clear()

    def reported(self, job: Job) -> dict[Metric, tuple[float | None, ...]]:
        """Of each step of a job; nothing on a rank that logs nothing."""
        if job.depth is not Depth.STEP:
            return {}
        metrics = {metric for step in self._steps for metric in step}
        return {metric: tuple(step.get(metric) for step in self._steps) for metric in metrics}

    def _take(self, args: Any, metrics: Mapping[str, Any], **options: Any) -> None:
        """Numbers of a training step have its loss among them; others are of rollouts."""
        known = {KEYS[key]: float(value) for key, value in metrics.items() if key in KEYS}
        if known:
            self._steps.append(known)


LOG = Log()
