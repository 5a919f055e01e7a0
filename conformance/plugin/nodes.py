"""Which of pytest's tests make which findings."""

from __future__ import annotations

NODE_ID = "test_conformance.py::test_finding["
"""In the node id of every finding, before the finding's own id."""


def finding_id(nodeid: str) -> str | None:
    """The id of the finding that a test makes; None for other tests."""
    _, found, rest = nodeid.partition(NODE_ID)
    return rest.rpartition("]")[0] if found else None
