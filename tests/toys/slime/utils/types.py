"""Samples."""

from dataclasses import dataclass

from slime import lineage


@dataclass(kw_only=True)
class Sample(lineage.Sample):
    rollout_id: int
    rollout_log_probs: list[float] | None = None
