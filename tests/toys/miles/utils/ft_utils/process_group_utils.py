"""Process groups."""

from miles.lineage import Group as GroupInfo

__all__ = ["GroupInfo"]
