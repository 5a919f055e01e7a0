"""Which steps a framework may decline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Objective
from reference.aggregation import Mode

if TYPE_CHECKING:
    from conformance.plan.matrix import MatrixCell
    from reference.step import Step

MODES_OF_OBJECTIVE = {
    Objective.ENTROPY: (Mode.TOKEN_MEAN,),
    Objective.KL: (Mode.TOKEN_MEAN,),
    Objective.COMBINED: (Mode.TOKEN_MEAN,),
    Objective.REJECTION: (Mode.TOKEN_MEAN, Mode.PROMPT_MEAN),
}
"""Modes in which an objective may be declined.

In miles' pull request 1498, sample-normalised terms are not mixed into `token_mean`, and where a
normaliser spans the step, no custom function may change the mask after micro-batches are cut.
"""


def may_decline(cell: MatrixCell) -> bool:
    """Whether the contract allows a framework to decline the cell's job.

    It may decline a step without active tokens, of which nothing can be computed; prompt groups
    that are not adjacent (SkyRL documents that it takes them to be); samples or rollouts that
    cannot be divided evenly among the data-parallel ranks (SkyRL asserts that batch sizes are
    multiples, slime that micro-batches can be aligned); and in `prompt_mean` prompt groups that
    cannot (miles' pull request 1498 keeps groups whole on a rank).
    """
    steps, dp, mode = cell.case.steps, cell.layout.dp, cell.aggregation.mode
    return (
        not all(step.mask.any() and _groups_are_adjacent(step) for step in steps)
        or mode in MODES_OF_OBJECTIVE.get(cell.spec.objective, ())
        or any(_is_uneven(step, dp) for step in steps)
        or (mode is Mode.PROMPT_MEAN and any(len(np.unique(step.groups)) % dp for step in steps))
    )


def _is_uneven(step: Step, dp: int) -> bool:
    """Whether data-parallel ranks get different numbers of samples or rollouts of a step."""
    return bool(step.size % dp or len(np.unique(step.rollouts)) % dp)


def _groups_are_adjacent(step: Step) -> bool:
    borders = np.count_nonzero(np.diff(step.groups))
    return bool(borders + 1 == len(np.unique(step.groups)))
