"""Jobs of a framework on cases of the corpus, and how far off its weights are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from adapters.contract import Depth, Job, Layout
from adapters.contract.objective import Objective
from conformance.corpus.cases import ALL_CASES
from conformance.judging.weights import largest_error
from conformance.ranks.pool import Ran
from reference.aggregation import Mode
from reference.weights import token_weights

if TYPE_CHECKING:
    from reference.aggregation import Conventions

CASES = {case.name: case for case in ALL_CASES}
MASKED = CASES["fully_masked_sample"]


def job(
    case: str = MASKED.name,
    mode: Mode = Mode.TOKEN_MEAN,
    layout: str = "dp2-cp1-mb2-thd",
    objective: Objective = Objective.POLICY,
) -> Job:
    """The whole step of a case."""
    return Job(
        steps=CASES[case].steps,
        aggregation=CASES[case].aggregation(mode),
        layout=Layout.parse(layout),
        depth=Depth.STEP,
        objective=objective,
    )


def weights_error(outcome: object, given: Job, conventions: Conventions) -> float:
    """The largest error of a weight of any step on any rank; infinite if one is no number."""
    assert isinstance(outcome, Ran), outcome
    errors = [
        largest_error(
            rank.token_weights[index], token_weights(step, given.aggregation, conventions)
        )
        for index, step in enumerate(given.steps)
        for rank in outcome.observations
    ]
    return max(math.inf if error is None else error for error in errors)
