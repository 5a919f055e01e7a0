"""Makes the finding of a matrix cell: runs its job on the ranks and judges their observations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.job import DEFAULT_CONFIGURATION
from adapters.contract.objective import (
    FROM_REWARDS,
    OF_ROLLOUTS,
    OFF_POLICY,
    Objective,
)
from conformance.corpus.configurations import TRIALS, ConfigCase, Demand
from conformance.expected.loss_terms import SUMS
from conformance.explain.clues import clues_of_failure
from conformance.findings.verdict import Check, Verdict
from conformance.judging.advice import (
    advice_on_crash,
    judge_by_fixed_mode,
    named_after_option,
)
from conformance.judging.conventions import judge_by_conventions
from conformance.judging.gradients import (
    judge_advantages,
    judge_combined,
    judge_off_policy,
    judge_router,
)
from conformance.judging.metrics import NOT_LOGGED, judge_logged, judge_logged_of_rollouts
from conformance.judging.startup import (
    NOT_BROKEN,
    by_own_rules,
    compared_with,
    judge_acceptance,
    judge_crash,
    judge_ignored,
    judge_log,
    judge_refusal,
)
from conformance.judging.weights import (
    Judgement,
    advice,
    judge_sharding,
    judge_weights,
    not_run,
    unjudged,
)
from conformance.plan.matrix import GeneratedCell, LogCell, MatrixCell, StartupCell, may_decline
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran
from conformance.runs.jobs import reports
from conformance.runs.laws import judge_law

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Description, Job, Observation
    from adapters.contract.job import Setting
    from conformance.judging.advice import Judge
    from conformance.plan.checks import CheckSpec
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
            return _check_log(cell, jobs)
        case MatrixCell() if (missing := _missing(cell, description)) is not None:
            return unjudged(Verdict.UNSUPPORTED, missing)
        case StartupCell():
            return _check_startup(cell, jobs)
        case MatrixCell() if cell.spec.law:
            return judge_law(cell, jobs.outcome(cell), jobs, partial(judge_outcome, jobs=jobs))
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


def judge(spec: CheckSpec) -> Judge:
    """The function that compares the observations of a check's job with the reference."""
    if spec.metric in OF_ROLLOUTS:
        return partial(judge_logged_of_rollouts, metric=spec.metric)
    if spec.metric is not None:
        return partial(judge_logged, metric=spec.metric)
    if spec.check is Check.SHARDING:
        return judge_sharding
    if spec.objective is Objective.ROUTER:
        return judge_router
    if spec.objective in (*OFF_POLICY, Objective.VALUE_CLIPPED):
        return judge_off_policy
    if spec.objective in FROM_REWARDS:
        return judge_advantages
    return judge_combined if spec.objective in SUMS else judge_weights


def judge_outcome(
    cell: MatrixCell, outcome: Ran | Declined | Crashed, jobs: SharedJobs
) -> Judgement:
    """Judges a cell by the outcome of its job, or of a job that an experiment has changed."""
    description = jobs.description
    if not isinstance(outcome, Ran):
        return _not_trained(cell, outcome, description)
    judgement = judge_by_conventions(
        partial(judge_by_fixed_mode, judge(cell.spec)),
        cell.spec,
        cell.job,
        outcome.observations,
        description,
    )
    if _is_never_read(judgement, cell, outcome, jobs):
        words = (
            f"the adapter reads no {cell.spec.metric}, of ordinary steps neither: this version logs"
            " it in another place or under another name, if at all"
        )
        return unjudged(Verdict.NOT_DRIVEN, words)
    judgement = named_after_option(judgement, cell.job, description)
    judgement = _but_for_rescaling(judgement, cell.job, jobs)
    if not cell.spec.is_of_gradient:
        return judgement
    return replace(judgement, behaviour=jobs.behaviour(cell.job, outcome.observations))


def _is_never_read(judgement: Judgement, cell: MatrixCell, outcome: Ran, jobs: SharedJobs) -> bool:
    """Whether a cell's metric is missing, and the adapter reads it from no ordinary step either."""
    metric, diagnosis = cell.spec.metric, judgement.diagnosis
    if metric is None or diagnosis is None or diagnosis.name != NOT_LOGGED:
        return False
    return not (reports(metric, outcome.observations) or jobs.reads(metric, cell.job))


def _but_for_rescaling(judgement: Judgement, job: Job, jobs: SharedJobs) -> Judgement:
    """The judgement, turned into advice if the trainer clips or scales right gradients.

    In a single job, a wrong count could explain the same gradients, so a trial job must show the
    same rescaling.
    """
    shown = jobs.rescaling(job) if judgement.rescalings else None
    if shown is None or not any(map(shown.is_same, judgement.rescalings)):
        return judgement
    return advice(shown.diagnosis, judgement.expected)


def _not_trained(
    cell: MatrixCell, outcome: Crashed | Declined, description: Description
) -> Judgement:
    """The judgement of a step that was declined, raised, hung or lost a rank.

    A framework may refuse a mode that its documents do not promise, and cells that the contract
    lets it decline. A crash with a batch that the framework itself never makes is advice.
    """
    judgement = not_run(outcome)
    if judgement.verdict is Verdict.CRASHED:
        never_made = advice_on_crash(cell.job, outcome.message, description)
        if never_made is not None:
            return never_made
    is_promised = cell.aggregation.mode in description.promised and not may_decline(cell)
    if judgement.verdict is Verdict.REFUSED and is_promised:
        judgement = replace(judgement, verdict=Verdict.DECLINED)
    return replace(judgement, clues=clues_of_failure(cell.job))


def _check_startup(cell: StartupCell, jobs: SharedJobs) -> Judgement:
    case, description = cell.config_case, jobs.description
    allowed = _why_allowed(case, description)
    if allowed is not None:
        return unjudged(Verdict.UNSUPPORTED, allowed)
    judged = by_own_rules(judge_startup(case, cell.job, jobs), case, description)
    if judged.verdict not in NOT_BROKEN and (ignored := _ignored(cell, jobs)):
        judged = judge_ignored(ignored, judged.message)
    return judged


def _ignored(cell: StartupCell, jobs: SharedJobs) -> frozenset[Setting]:
    """The settings that the adapter ignores; empty if the cell's own settings are known to work."""
    ignored, settings = jobs.ignored_settings(cell.layout), cell.config_case.configuration.settings
    return ignored if settings & ignored or settings - TRIALS.keys() else frozenset()


def _why_allowed(case: ConfigCase, description: Description) -> str | None:
    """The reason why a configuration breaks no rule of the framework; None if it breaks one."""
    if not case.applies(description.conventions):
        return f"by its conventions nothing is wrong with {case.says}"
    permitted = description.permits.get(case.rule)
    return None if permitted is None else f"{case.says}: allowed by {permitted}"


def judge_startup(case: ConfigCase, job: Job, jobs: SharedJobs) -> Judgement:
    """Judge whether a framework refuses a configuration that it must refuse, or trains it rightly.

    If the default configuration does not run either, the default's crash or refusal is the verdict.
    """
    description, outcome = jobs.description, jobs.run(job)
    if isinstance(outcome, Crashed):
        if outcome.verdict is Verdict.NOT_DRIVEN:
            return not_run(outcome)
        default = jobs.run(replace(job, configuration=DEFAULT_CONFIGURATION))
        if isinstance(default, Crashed):
            return not_run(default)
        return judge_crash(case, outcome)
    if isinstance(outcome, Declined):
        is_refused = outcome.verdict == "refused"
        return judge_refusal(case, outcome.message, description) if is_refused else not_run(outcome)
    plain: Sequence[Observation] = ()
    if case.demand in (Demand.SAME, Demand.DEFAULT):
        compared = jobs.run(compared_with(case, job, description))
        if not isinstance(compared, Ran):
            return not_run(compared)
        plain = compared.observations
    return judge_acceptance(case, job, outcome.observations, description, plain)


def _check_log(cell: LogCell, jobs: SharedJobs) -> Judgement:
    """Judge whether a framework logs only well-formed entries, both with and without asserts."""
    case, description = cell.log_case, jobs.description
    outcome, optimized = jobs.logs.of(case.name)
    if outcome.kind in (Verdict.UNSUPPORTED, Verdict.CRASHED):
        return unjudged(Verdict(outcome.kind), outcome.message)
    judgement = by_own_rules(judge_log(case, outcome, optimized), case, description)
    return replace(judgement, tolerance=None, message=outcome.message or None)


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
