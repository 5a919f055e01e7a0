"""Samples, each a rollout of its own."""

from dataclasses import dataclass

from miles import lineage


@dataclass(kw_only=True)
class Sample(lineage.Sample):
    rollout_log_probs: list[float] | None = None
