"""Makes the finding of a matrix cell: runs its job on the ranks and judges their observations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.objective import Objective
from conformance.findings.verdict import Check, Verdict
from conformance.judging.laws import judge_law
from conformance.judging.outcome import judge_outcome
from conformance.judging.startup import judge_configuration, judge_logs
from conformance.judging.weights import unjudged
from conformance.plan.matrix import GeneratedCell, LogCell, MatrixCell, StartupCell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from adapters.contract import Description
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.runs.jobs import SharedJobs


def make(cell: AnyMatrixCell, jobs: SharedJobs) -> Judgement:
    """Runs the job, log or generated cases of a cell and judges the outcome."""
    description = jobs.description
    match cell:
        case GeneratedCell():
            from conformance.runs.generated import check_generated  # imports hypothesis: 0.3 s

            return check_generated(cell, partial(make, jobs=jobs))
        case LogCell():
            return judge_logs(cell.log_case, *jobs.logs.of(cell.log_case.name), description)
        case MatrixCell() if (missing := _missing(cell, description)) is not None:
            return unjudged(Verdict.UNSUPPORTED, missing)
        case StartupCell():
            return judge_configuration(cell, jobs)
        case MatrixCell() if cell.spec.law:
            return judge_law(cell, jobs.outcome(cell), jobs)
    return judge_outcome(cell, jobs.outcome(cell), jobs)


def job_cells(
    cells: Iterable[AnyMatrixCell | None], description: Description
) -> Iterator[MatrixCell]:
    """Yield cells that are judged by one job only, which may therefore run beforehand."""
    for cell in cells:
        if type(cell) is not MatrixCell or (cell.spec.law and not cell.spec.law.attached):
            continue
        if _missing(cell, description) is None:
            yield cell


def is_offered(cell: AnyMatrixCell, description: Description) -> bool:
    """Whether the described version of a framework has everything that a cell needs."""
    return not isinstance(cell, MatrixCell) or _missing(cell, description) is None


def _missing(cell: MatrixCell, description: Description) -> str | None:
    """A thing that a cell needs and the framework lacks, in words; None if it lacks nothing."""
    if cell.spec.is_of_advantages and cell.spec.objective not in description.objectives:
        return f"no objective {cell.spec.objective}"
    if cell.aggregation.mode not in description.modes:
        alone = ", and advantages are looked at in no other unless --modes chooses one"
        return f"no mode {cell.aggregation.mode}{alone if cell.spec.is_of_advantages else ''}"
    attached = cell.spec.law and cell.spec.law.attached
    if attached and f"no_gradient.{attached}" not in description.rules:
        return f"{attached} are given, and no forward pass that computes them is run"
    if cell.depth not in description.depths:
        return f"no depth {cell.depth}"
    if cell.spec.objective not in description.objectives:
        return f"no objective {cell.spec.objective}"
    if cell.job.rejects and Objective.REJECTION not in description.objectives:
        return f"no objective {Objective.REJECTION}"
    if cell.job.lacks_rewards and not description.missing_rewards:
        return "no missing rewards"
    if cell.layout.tp > description.largest_tp:
        return f"no {cell.layout.tp} tensor-parallel ranks"
    if cell.layout.pp > description.largest_pp:
        return f"no {cell.layout.pp} pipeline stages"
    if cell.spec.metric is not None and cell.spec.metric not in description.metrics:
        return f"no metric {cell.spec.metric}"
    if cell.spec.check is Check.SHARDING and not description.records_forward_passes:
        return "no record of forward passes"
    lacking = sorted(
        {*cell.layout.options} - description.options
        | cell.job.configuration.settings - description.configurations.keys()
    )
    return f"no option {', '.join(lacking)}" if lacking else None
