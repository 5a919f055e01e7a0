"""Samples, each a rollout of its own."""

from slime.lineage import Sample

__all__ = ["Sample"]
