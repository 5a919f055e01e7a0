"""Findings that a run makes beyond its plan, while its ranks still run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.errors import HarnessFaultError
from conformance.runs.check import is_offered, job_cells, make
from conformance.runs.recorder import fault_message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.findings.finding import Finding
    from conformance.plan.matrix import MatrixCell
    from conformance.runs.jobs import SharedJobs
    from conformance.runs.recorder import FindingRecorder

ROUNDS = 3
"""The most rounds of substitutes: jobs that replace declined ones may be declined themselves."""


def made(
    cells: Sequence[MatrixCell], recorder: FindingRecorder, jobs: SharedJobs
) -> Iterator[Finding]:
    """Makes, records and yields the findings of cells that the plan does not have.

    Raises:
        HarnessFaultError: no verdict of the run can be relied on.
    """
    jobs.share(cells)
    for place, cell in enumerate(cells, start=1):
        jobs.expect(job_cells(cells[place:], jobs.description))
        yield made_and_recorded(cell, recorder, jobs)


def made_and_recorded(
    cell: MatrixCell, recorder: FindingRecorder, jobs: SharedJobs, header: str = ""
) -> Finding:
    """Makes, records and returns the finding of a cell that the plan does not have.

    Raises:
        HarnessFaultError: no verdict of the run can be relied on.
    """
    try:
        judgement = make(cell, jobs)
    except HarnessFaultError as fault:
        return recorder.record_more(fault_message(fault, header))
    seconds = jobs.pool.drain_framework_seconds()
    return recorder.record_more(message(cell, judgement, header, seconds))


def instead_of_declined(recorder: FindingRecorder, jobs: SharedJobs) -> Iterator[Finding]:
    """Makes, records and yields findings that can show the same mistakes as a plan's declined jobs.

    A quick plan is chosen before it is known which batches a framework declines on which layouts.
    """
    if not recorder.is_whole:
        return
    description = jobs.description
    substitutes = recorder.settings.plan.substitutes(lambda cell: is_offered(cell, description))
    for _ in range(ROUNDS):
        cells = substitutes.of_declined(recorder.ran)
        if not cells:
            return
        yield from made(cells, recorder, jobs)
