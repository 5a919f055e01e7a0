"""Samples, each a rollout of its own."""

from miles.lineage import Sample

__all__ = ["Sample"]
