"""Makes one finding: runs a cell's job on the ranks and judges what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.judge import judge_reported, judge_weights
from conformance.ranks import Crashed, Ran
from conformance.report import Check, Diagnosis, Finding, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adapters.contract import Description, Job, Observation
    from conformance.judge import Judgement
    from conformance.ranks import RankPool
    from conformance.settings import Cell
    from reference.step import Step

    Judge = Callable[[Job, Sequence[Observation], Description], Judgement | None]


JUDGES: dict[Check, Judge] = {Check.WEIGHTS: judge_weights, Check.METRIC: judge_reported}


def check(cell: Cell, pool: RankPool) -> tuple[Finding, float]:
    """The finding, and the seconds that the slowest rank spent in the framework for it."""
    missing = _missing(cell, pool.description)
    if missing is not None:
        return _finding(cell, verdict=Verdict.UNSUPPORTED, message=missing), 0.0
    outcome = pool.outcome(cell.job)
    if isinstance(outcome, Ran):
        judgement = JUDGES[cell.check](cell.job, outcome.observations, pool.description)
        if judgement is None:
            words = "the adapter reads no policy loss that this framework reports"
            return _finding(cell, verdict=Verdict.UNSUPPORTED, message=words), 0.0
        finding = _finding(
            cell,
            verdict=judgement.verdict,
            error=judgement.error,
            tolerance=judgement.tolerance,
            diagnosis=judgement.diagnosis,
        )
        return finding, outcome.framework_seconds
    if isinstance(outcome, Crashed):
        return _finding(cell, verdict=Verdict.CRASHED, message=outcome.message), 0.0
    if outcome.verdict == "unsupported":
        return _finding(cell, verdict=Verdict.UNSUPPORTED, message=outcome.message), 0.0
    return _refused(cell, outcome.message), 0.0


def _missing(cell: Cell, description: Description) -> str | None:
    """What a cell needs and the framework, by its own description, has not got."""
    if cell.aggregation.mode not in description.modes:
        return f"no mode {cell.aggregation.mode}"
    if cell.depth not in description.depths:
        return f"no depth {cell.depth}"
    layout = cell.layout
    if layout.tp > description.largest_tp:
        return f"no {layout.tp} tensor-parallel ranks"
    lacking = [option for option in layout.options if option not in description.options]
    if lacking:
        return f"no option {', '.join(lacking)}"
    return None


def _may_refuse(cell: Cell) -> bool:
    """Whether declining is right.

    It is where a step has no active token, so that there is nothing to compute; where members of a
    prompt group are not adjacent, which SkyRL documents that it takes them to be; and for
    `prompt_mean` where the prompt groups do not share out evenly over the data-parallel ranks:
    miles' pull request 1498 keeps groups whole on a rank and rejects such steps.
    """
    steps, dp = cell.case.steps, cell.layout.dp
    if not all(step.mask.any() and _groups_are_adjacent(step) for step in steps):
        return True
    uneven = any(len(np.unique(step.groups)) % dp for step in steps)
    return cell.aggregation.mode is Mode.PROMPT_MEAN and uneven


def _groups_are_adjacent(step: Step) -> bool:
    borders = np.count_nonzero(np.diff(step.groups))
    return bool(borders + 1 == len(np.unique(step.groups)))


def _refused(cell: Cell, message: str) -> Finding:
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


def _finding(cell: Cell, **outcome: Any) -> Finding:
    return Finding(
        id=cell.id,
        check=cell.check,
        mode=cell.aggregation.mode,
        case=cell.case.name,
        layout=cell.layout,
        depth=cell.depth,
        **outcome,
    )
