"""How pytest-xdist spreads findings over its workers."""

from __future__ import annotations

from functools import cached_property

from xdist.scheduler import LoadFileScheduling

from conformance.plugin.options import finding_id, settings_of


class JobScheduling(LoadFileScheduling):  # type: ignore[misc]
    """One worker makes all findings of a job, so that no job runs twice; files stay whole."""

    @cached_property
    def _jobs(self) -> dict[str, str]:
        """The job of each finding, looked up only where the suite is run."""
        return {cell.id: cell.job_id for cell in settings_of(self.config).plan.cells()}

    def _split_scope(self, nodeid: str) -> str:
        """The name of what one worker runs as a whole."""
        finding = finding_id(nodeid)
        if finding is None:
            return str(super()._split_scope(nodeid))
        return self._jobs.get(finding, finding)
