"""Samples."""

from dataclasses import dataclass

from slime import lineage


@dataclass(kw_only=True)
class Sample(lineage.Sample):
    rollout_id: int
