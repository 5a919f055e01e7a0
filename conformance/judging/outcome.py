"""Judges the outcome of a cell's job by its check and by what the framework documents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.objective import FROM_REWARDS, OF_ROLLOUTS, OFF_POLICY, Objective
from conformance.expected.loss_terms import SUMS
from conformance.explain.clues import clues_of_failure
from conformance.findings.verdict import Check, Verdict
from conformance.judging.advice import advice_on_crash, judge_by_fixed_mode, named_after_option
from conformance.judging.conventions import judge_by_conventions
from conformance.judging.gradients import (
    judge_advantages,
    judge_combined,
    judge_off_policy,
    judge_router,
)
from conformance.judging.metrics import NOT_LOGGED, judge_logged, judge_logged_of_rollouts
from conformance.judging.weights import (
    Judgement,
    advice,
    judge_sharding,
    judge_weights,
    not_run,
    unjudged,
)
from conformance.plan.matrix import may_decline
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from adapters.contract import Description, Job
    from conformance.judging.advice import Judge
    from conformance.judging.further_jobs import FurtherJobs
    from conformance.judging.weights import Outcome, Trained
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed


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


def is_plainly_wrong(cell: MatrixCell, trained: Trained) -> bool:
    """Whether a cell is a mismatch, judged without explaining it, which takes a tenth of the time.

    Where only an explanation could show that a step is right, the answer is False.
    """
    if cell.spec.metric or trained.description.deliberate:
        return False
    found = _judge_trained(cell, replace(trained, explains=False))
    return found.verdict is Verdict.MISMATCH and not found.rescalings


def judge_outcome(cell: MatrixCell, outcome: Outcome, jobs: FurtherJobs) -> Judgement:
    """Judges a cell by the outcome of its job, or of a job that an experiment has changed."""
    if not isinstance(outcome, Ran):
        return _not_trained(cell, outcome, jobs.description)
    trained = jobs.trained(cell.job, outcome)
    judgement = _judge_trained(cell, trained)
    if _is_never_read(judgement, cell, trained, jobs):
        words = (
            f"the adapter reads no {cell.spec.metric}, of ordinary steps neither: this version logs"
            " it in another place or under another name, if at all"
        )
        return unjudged(Verdict.NOT_DRIVEN, words)
    judgement = named_after_option(judgement, cell.job, jobs.description)
    judgement = _but_for_rescaling(judgement, cell.job, jobs)
    if not cell.spec.is_of_gradient:
        return judgement
    return replace(judgement, behaviour=jobs.behaviour(trained))


def _judge_trained(cell: MatrixCell, trained: Trained) -> Judgement:
    by_mode = partial(judge_by_fixed_mode, judge(cell.spec))
    return judge_by_conventions(by_mode, cell.spec, trained)


def _is_never_read(
    judgement: Judgement, cell: MatrixCell, trained: Trained, jobs: FurtherJobs
) -> bool:
    """Whether a cell's metric is missing, and the adapter reads it from no ordinary step either."""
    metric = cell.spec.metric
    if metric is None or NOT_LOGGED not in judgement.names[:1]:
        return False
    return not (trained.reports(metric) or jobs.reads(cell.job, metric))


def _but_for_rescaling(judgement: Judgement, job: Job, jobs: FurtherJobs) -> Judgement:
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
