"""How pytest-xdist spreads findings over its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from conformance.plugin.nodes import finding_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest
    from xdist.remote import Producer

    from conformance.plan.matrix import AnyMatrixCell


class JobScheduling(LoadFileScheduling):  # type: ignore[misc]
    """One worker makes all findings of a job, so that no job runs twice; files stay whole."""

    def __init__(
        self, config: pytest.Config, log: Producer, cells: Iterable[AnyMatrixCell]
    ) -> None:
        super().__init__(config, log)
        self._jobs = {cell.id: cell.job_id for cell in cells}

    def _split_scope(self, nodeid: str) -> str:
        """The name of what one worker runs as a whole."""
        job: str | None = self._jobs.get(finding_id(nodeid) or "")
        return job or str(super()._split_scope(nodeid))
