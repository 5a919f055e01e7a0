"""Makes one finding: runs a cell's job on the ranks and judges what they saw."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adapters.contract import CodeLocation
from adapters.contract.configuration import DEFAULT_CONFIGURATION
from adapters.contract.objective import Objective
from conformance.corpus.configurations import ConfigCase, Demand
from conformance.corpus.log_cases import LOG_ENTRIES
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import Check, Verdict
from conformance.judging.combined import judge_combined
from conformance.judging.cut_dependence import judge_cut_dependence
from conformance.judging.logs import judge_log
from conformance.judging.metrics import judge_logged
from conformance.judging.sharding import judge_sharding
from conformance.judging.startup import (
    by_own_rules,
    compared_with,
    judge_acceptance,
    judge_crash,
    judge_refusal,
)
from conformance.judging.weights import Judgement, judge_weights
from conformance.plan.checks import place
from conformance.plan.matrix import StartupCell
from conformance.ranks.log_process import outcomes
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from adapters.contract import Adapter, Description, Job, Observation
    from conformance.diagnosis.step_context import ExpectedNumber
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import LogCell, MatrixCell
    from conformance.ranks.pool import RankPool
    from reference.step import Step

    Judge = Callable[[Job, Sequence[Observation], Description], Judgement | None]


class Made(NamedTuple):
    """What came of a cell."""

    finding: Finding
    framework_seconds: float = 0.0
    """Those that the slowest rank spent in the framework's code."""

    expected: tuple[ExpectedNumber, ...] = ()
    """To be compared with those of the other findings of the run."""


def judge(spec: CheckSpec) -> Judge:
    """The function that judges a check's observations."""
    if spec.compares_cuts:
        return judge_cut_dependence
    if spec.metric is not None:
        return partial(judge_logged, metric=spec.metric)
    if spec.check is Check.SHARDING:
        return judge_sharding
    return judge_combined if spec.objective is Objective.COMBINED else judge_weights


MAY_REFUSE = {
    Objective.ENTROPY: (Mode.TOKEN_MEAN,),
    Objective.KL: (Mode.TOKEN_MEAN,),
    Objective.COMBINED: (Mode.TOKEN_MEAN,),
    Objective.REJECTION: (Mode.TOKEN_MEAN, Mode.PROMPT_MEAN),
}
"""Modes in which an objective may be declined (miles' pull request 1498)."""


def check(cell: MatrixCell, pool: RankPool) -> Made:
    """Run a cell's job, or several for a configuration, and judge what came of it."""
    missing = _missing(cell, pool.description)
    if missing is not None:
        return Made(_finding(cell, verdict=Verdict.UNSUPPORTED, message=missing))
    if isinstance(cell, StartupCell):
        return Made(_check_startup(cell, pool))
    outcome = pool.outcome(cell.job)
    if isinstance(outcome, Ran):
        judgement = judge(cell.spec)(cell.job, outcome.observations, pool.description)
        if judgement is None:
            words = f"nothing is known of {cell.spec.metric or cell.spec.slug} here"
            return Made(_finding(cell, verdict=Verdict.UNSUPPORTED, message=words))
        finding = _judged(cell, judgement, pool.description)
        return Made(finding, outcome.framework_seconds, judgement.expected)
    if isinstance(outcome, Crashed):
        return Made(_finding(cell, verdict=Verdict.CRASHED, message=outcome.message))
    if outcome.verdict == "unsupported":
        return Made(_finding(cell, verdict=Verdict.UNSUPPORTED, message=outcome.message))
    return Made(_refused(cell, outcome.message))


def _check_startup(cell: StartupCell, pool: RankPool) -> Finding:
    if not cell.config_case.applies(pool.description.conventions):
        words = f"by its conventions nothing is wrong with {cell.config_case.says}"
        return _finding(cell, verdict=Verdict.UNSUPPORTED, message=words)
    permitted = pool.description.permits.get(cell.config_case.rule)
    if permitted is not None:
        words = f"{cell.config_case.says}: allowed by {permitted}"
        return _finding(cell, verdict=Verdict.UNSUPPORTED, message=words)
    judged = judge_startup(cell.config_case, cell.job, pool)
    if isinstance(judged, Crashed):
        judged = judge_crash(cell.config_case, judged.message)
    if isinstance(judged, Judgement):
        return _judged(
            cell, by_own_rules(judged, cell.config_case, pool.description), pool.description
        )
    return _finding(cell, verdict=Verdict.UNSUPPORTED, message=judged.message)


def judge_startup(
    config_case: ConfigCase, job: Job, pool: RankPool
) -> Judgement | Crashed | Declined:
    """Whether a framework refuses what it must, and trains what it must be the same as.

    A crash, or a lack of what the configuration needs, is handed back as it is.
    """
    outcome = pool.run(job)
    if isinstance(outcome, Crashed):
        return _beyond_the_ordinary(outcome, job, pool)
    if not isinstance(outcome, Ran):
        return (
            judge_refusal(config_case, outcome.message) if outcome.verdict == "refused" else outcome
        )
    plain: Sequence[Observation] = ()
    if config_case.demand in (Demand.SAME, Demand.DEFAULT):
        compared = pool.run(compared_with(config_case, job, pool.description))
        if not isinstance(compared, Ran):
            return compared
        plain = compared.observations
    return judge_acceptance(config_case, job, outcome.observations, pool.description, plain)


def _beyond_the_ordinary(crash: Crashed, job: Job, pool: RankPool) -> Crashed | Declined:
    """A crash, unless the ordinary configuration ends in one too, which other checks tell of."""
    ordinary = pool.run(replace(job, configuration=DEFAULT_CONFIGURATION))
    if not isinstance(ordinary, Crashed):
        return crash
    words = f"the ordinary configuration crashes too: {last_line(ordinary.message)}"
    return Declined("unsupported", words)


UNJUDGED = {"unsupported": Verdict.UNSUPPORTED, "crashed": Verdict.CRASHED}
"""Outcomes of a log that leave nothing to judge."""


def check_log(
    cell: LogCell, adapter: Adapter, source: Path | None, description: Description
) -> Finding:
    """Whether a framework makes a log of well-formed entries alone, with asserts and without."""
    outcome, optimized = (
        outcomes(adapter, source, LOG_ENTRIES, optimized=without_asserts)[cell.log_case.name]
        for without_asserts in (False, True)
    )
    if outcome.kind in UNJUDGED:
        return _finding(cell, verdict=UNJUDGED[outcome.kind], message=outcome.message)
    judgement = by_own_rules(
        judge_log(cell.log_case, outcome, optimized), cell.log_case, description
    )
    is_wrong = judgement.verdict is Verdict.MISMATCH
    return _finding(
        cell,
        verdict=judgement.verdict,
        diagnosis=judgement.diagnosis,
        place=description.places.get(CodeLocation.LOG) if is_wrong else None,
        message=outcome.message or None,
    )


def _missing(cell: MatrixCell, description: Description) -> str | None:
    """What a cell needs and the framework, by its own description, has not got."""
    if cell.aggregation.mode not in description.modes:
        return f"no mode {cell.aggregation.mode}"
    if cell.depth not in description.depths:
        return f"no depth {cell.depth}"
    if cell.spec.objective not in description.objectives:
        return f"no objective {cell.spec.objective}"
    layout = cell.layout
    if layout.tp > description.largest_tp:
        return f"no {layout.tp} tensor-parallel ranks"
    lacking = [option for option in layout.options if option not in description.options]
    if lacking:
        return f"no option {', '.join(lacking)}"
    return None


def _may_refuse(cell: MatrixCell) -> bool:
    """Whether declining is right.

    It is where a step has no active token, so that there is nothing to compute; where members of a
    prompt group are not adjacent, which SkyRL documents that it takes them to be; and for
    `prompt_mean` where the prompt groups do not share out evenly over the data-parallel ranks:
    miles' pull request 1498 keeps groups whole on a rank and rejects such steps. By the same pull
    request, terms that stay sample-normalised are not mixed into `token_mean`, and where a
    normaliser spans the step no custom function may change the mask after micro-batches are cut.
    Steps that do not share out evenly over the data-parallel ranks may be declined in every mode:
    SkyRL asserts that batch sizes are multiples, slime that micro-batches can be aligned.
    """
    steps, dp, mode = cell.case.steps, cell.layout.dp, cell.aggregation.mode
    if not all(step.mask.any() and _groups_are_adjacent(step) for step in steps):
        return True
    if mode in MAY_REFUSE.get(cell.spec.objective, ()):
        return True
    if any(_is_uneven(step, dp) for step in steps):
        return True
    uneven = any(len(np.unique(step.groups)) % dp for step in steps)
    return mode is Mode.PROMPT_MEAN and uneven


def _is_uneven(step: Step, dp: int) -> bool:
    """Whether data-parallel ranks get different numbers of samples or rollouts of a step."""
    return bool(step.size % dp or len(np.unique(step.rollouts)) % dp)


def _groups_are_adjacent(step: Step) -> bool:
    borders = np.count_nonzero(np.diff(step.groups))
    return bool(borders + 1 == len(np.unique(step.groups)))


def _refused(cell: MatrixCell, message: str) -> Finding:
    """A refusal where the contract allows one; elsewhere it is a mismatch."""
    if _may_refuse(cell):
        return _finding(cell, verdict=Verdict.REFUSED, message=message)
    return _finding(
        cell,
        verdict=Verdict.MISMATCH,
        message=message,
        diagnosis=Diagnosis(
            name="refused_what_it_supports",
            explanation="the framework has this mode and layout and declines an ordinary step",
        ),
    )


def _judged(cell: MatrixCell, judgement: Judgement, description: Description) -> Finding:
    return _finding(
        cell,
        verdict=judgement.verdict,
        error=judgement.error,
        tolerance=judgement.tolerance,
        agreement=judgement.agreement,
        diagnosis=judgement.diagnosis,
        place=_place(cell, judgement, description),
        message=judgement.message,
        picture=judgement.picture,
        logged=judgement.logged,
    )


def _place(cell: MatrixCell, judgement: Judgement, description: Description) -> str | None:
    """Where the mistake must have been made, if it and the check determine that."""
    if judgement.verdict is not Verdict.MISMATCH or judgement.diagnosis is None:
        return None
    determined = place(cell.spec, cell.aggregation.mode, judgement.diagnosis)
    return None if determined is None else description.places.get(determined)


def _finding(cell: MatrixCell | LogCell, **outcome: Any) -> Finding:
    return Finding(id=cell.id, depth=cell.depth, **outcome)
